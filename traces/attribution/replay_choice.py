"""Which failed turns are worth replaying, the most informative for an engine call first.

In: the lake. Out: turn ids in order, and why the others are left out. A replay tells most where
the blame is in doubt, and matters most where the blame would train something. Of turns that ask
much the same of the same slot the first tells most, so that others of its kind come later.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

from collections import Counter
from collections.abc import Sequence
from typing import Any

import duckdb

from serving.records import BASE_SLOT
from serving.slots import Profile
from traces.attribution.replayed import REPLAYED_CLASSES
from traces.joins.standing import superseded_turns_sql

CANARY = "canary turn"
TRUNCATED = "truncated answer"
FOREIGN_SLOT = "answered by a slot that the profile does not have"
NO_CHECK = "nothing to check a fresh answer against"
NOT_FINISHED = "turn failed or abandoned"

_LEAST_DOUBT = 0.1
"""Even a sure blame may be wrong."""
_NARROW_CHECK = 0.2
"""Where an edit's text is all there is to check against: few right answers are the same words."""
_MATTERS = {"router": 1.0, "adapter": 1.0, "unknown": 0.6, "summary": 0.3}
"""By class: what trains an adapter if it is believed comes before what trains nothing yet."""

# Doubt is 1 at a confidence of one half or where nothing is claimed, and 0 where all is sure.
# A turn costs by its calls, of which a route and a summary are not asked again. Those that have
# been replayed come last: there is nothing to ask unless their reference or the samples changed.
_FAILED = """
    WITH failed AS (
        SELECT t.turn_id, t.slot, t.request, b.klass,
               CASE WHEN t.canary THEN $canary
                    WHEN t.status <> 'ok' OR t.slot IS NULL THEN $not_finished
                    WHEN o.truncated THEN $truncated
                    WHEN NOT list_contains($classes, b.klass) THEN 'blamed on the ' || b.klass
                    WHEN NOT list_contains($slots, t.slot) THEN $foreign
                    WHEN NOT contains(o.signals, '"reference":"') AND o.correction IS NULL
                    THEN $unchecked END AS reason,
               CASE WHEN contains(o.signals, '"reference":"')
                         OR json_array_length(o.correction, '$.tool_calls') > 0 THEN 1.0
                    ELSE $narrow END AS telling,
               CASE WHEN b.klass = 'unknown' THEN 1.0
                    ELSE greatest($least, 1 - abs(2 * b.confidence - 1)) END AS doubt,
               greatest(1, len(t.hop_ids) - 2) AS calls,
               coalesce(r.arms, 0) >= $arms AS replayed
        FROM turns t JOIN outcomes o USING (turn_id) JOIN blame b USING (turn_id)
        LEFT JOIN (SELECT turn_id, count(DISTINCT slot) AS arms FROM replays
                   WHERE json_extract(config, '$.asked')::BIGINT >= $samples
                   GROUP BY turn_id) r USING (turn_id)
        WHERE o.success = false AND t.turn_id NOT IN ({superseded}))
"""
_ORDER = """
    SELECT turn_id, slot, request, replayed, doubt * telling * {matters} / calls AS worth
    FROM failed WHERE reason IS NULL ORDER BY replayed, worth DESC, turn_id
"""
_COMPARED = 5000
"""Turns, from the first on, that are compared with each other."""


def choose(
    connection: duckdb.DuckDBPyConnection, profile: Profile, samples: int, similarity: float
) -> tuple[list[str], Counter[str]]:
    """Return the failed turns to replay in order, and how many others there are by reason.

    `similarity` is the cosine from which on requests are alike.
    """
    failed = _FAILED.format(superseded=superseded_turns_sql())
    values: dict[str, Any] = {
        "canary": CANARY,
        "not_finished": NOT_FINISHED,
        "truncated": TRUNCATED,
        "foreign": FOREIGN_SLOT,
        "classes": sorted(REPLAYED_CLASSES),
        "slots": [*profile.labels, BASE_SLOT],
        "unchecked": NO_CHECK,
        "least": _LEAST_DOUBT,
        "narrow": _NARROW_CHECK,
        "arms": len(profile.labels),
        "samples": samples,
    }
    left_out = connection.execute(
        f"{failed} SELECT reason, count(*) FROM failed WHERE reason IS NOT NULL GROUP BY reason",
        values,
    ).fetchall()
    found = connection.execute(failed + _ORDER.format(matters=_matters()), values).fetchall()
    head = _spread(found[:_COMPARED], similarity)
    return [*head, *(row[0] for row in found[_COMPARED:])], Counter(dict(left_out))


def _spread(found: Sequence[tuple[str, str, str, bool, float]], similarity: float) -> list[str]:
    """Return turns by what they are worth, of those alike each less than the one before."""
    from traces.attribution.clusters import Clusters

    if not found:
        return []
    texts = [request or " " for _, _, request, _, _ in found]
    groups = Clusters.of(texts, similarity).assign(texts).tolist()
    seen: Counter[tuple[str, object]] = Counter()
    ranked = []
    for (turn_id, slot, request, replayed, worth), group in zip(found, groups, strict=True):
        kind = (slot, group if group >= 0 else request)
        seen[kind] += 1
        ranked.append((replayed, -worth / seen[kind], turn_id))
    return [turn_id for _, _, turn_id in sorted(ranked)]


def _matters() -> str:
    cases = " ".join(f"WHEN '{klass}' THEN {weight}" for klass, weight in _MATTERS.items())
    return f"CASE klass {cases} ELSE 0 END"
