"""Filters over the candidates of a whole dataset: size, duplicates, gate suites, balance.

Each takes candidates and returns those kept and a count of those dropped, by reason. All
are independent of the order in which candidates arrive.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from curation import reasons
from curation.config import CurationConfig
from curation.examples import text_chars
from curation.harvest import Candidate

Filtered = tuple[list[Candidate], Counter[str]]

_RANK = {"edit": 0, "route": 0, "verified": 1, "thumb": 2, "replay": 3}


def fits(candidate: Candidate, config: CurationConfig) -> bool:
    """Say whether a row is within the size limits; longer ones are dropped, never cut."""
    example = candidate.example
    prompt_chars = sum(map(text_chars, example.messages)) + len(example.tools)
    return (
        prompt_chars <= config.max_prompt_chars
        and text_chars(example.completion) <= config.max_completion_chars
    )


def drop_duplicates(rows: Iterable[Candidate]) -> Filtered:
    """Keep one row for each prompt.

    A prompt that occurs on both sides of the split stays in train. A correction
    beats a verified answer, and that beats a thumb. Of equal rows the first by (start, turn
    id) is kept; of rows that disagree on the completion, the latest.
    """
    by_prompt: dict[str, list[Candidate]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt_key].append(row)
    kept: list[Candidate] = []
    dropped: Counter[str] = Counter()
    for group in by_prompt.values():
        sides = {row.example.split for row in group}
        side = [row for row in group if len(sides) == 1 or row.example.split == "train"]
        dropped[reasons.ALSO_IN_TRAIN] += len(group) - len(side)
        first: dict[str, Candidate] = {}
        for row in sorted(side, key=lambda row: (_RANK[row.example.source], row.order)):
            first.setdefault(row.row_key, row)
        latest = max(side, key=lambda row: (-_RANK[row.example.source], row.order))
        dropped[reasons.DUPLICATE] += len(side) - len(first)
        dropped[reasons.SUPERSEDED] += len(first) - 1
        kept.append(first[latest.row_key])
    return kept, +dropped


def drop_sealed(rows: Iterable[Candidate], sealed_prompts: frozenset[str]) -> Filtered:
    """Drop rows whose request, normalised, is one that a gate suite asks."""
    rows = list(rows)
    kept = [row for row in rows if not row.prompt_ids & sealed_prompts]
    return kept, +Counter({reasons.SEALED: len(rows) - len(kept)})


def cap_replay(rows: Iterable[Candidate], config: CurationConfig) -> Filtered:
    """Keep replayed training rows to their share; which ones is decided by row id."""
    rows = list(rows)
    train = [row for row in rows if row.example.split == "train"]
    replay = sorted(row.example.example_id for row in train if row.example.source == "replay")
    others = len(train) - len(replay)
    room = int(config.replay_share / (1 - config.replay_share) * others)
    over = set(replay[room:])
    kept = [row for row in rows if row.example.example_id not in over]
    return kept, +Counter({reasons.REPLAY: len(over)})


def balance(rows: Iterable[Candidate], config: CurationConfig) -> Filtered:
    """Cap the larger duty of the router slot's training rows at a multiple of the smaller.

    A router trained on routes alone forgets how to answer. Corrections are kept first, then
    a sample by row id. Holdout rows stay: they are measured duty by duty.
    """
    rows = list(rows)
    train: dict[str, list[Candidate]] = {"answer": [], "route": []}
    for row in rows:
        if row.example.split == "train" and row.example.duty in train:
            train[row.example.duty].append(row)
    small, large = sorted(train.values(), key=len)
    room = int(config.max_duty_ratio * len(small))
    ranked = sorted(large, key=lambda r: (_RANK[r.example.source], r.example.example_id))
    # With one duty alone there is nothing to balance against; the caller refuses that dataset.
    over = {row.example.example_id for row in ranked[room:]} if small else set()
    kept = [row for row in rows if row.example.example_id not in over]
    return kept, +Counter({reasons.UNBALANCED: len(over)})
