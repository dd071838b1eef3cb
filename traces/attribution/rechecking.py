"""Make the checks again whose verifier had crashed, hung or could not judge.

A deployment's verdict without a score may have kept what it checked against (`Feedback.reference`);
then the same check is made here, and what it finds counts as the deployment's own. In: the lake at
one snapshot, and which signals are about which turn. Out: verdicts with that reference. An edit is
no reference: it is a user's word, and what follows from it stays of tier B. DuckDB picks the
verdicts, at most `MANY` of a turn, so that a flood of them needs no memory here.
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import duckdb

from serving.records import Feedback, Hop, content_id, short_digest
from traces.attribution.form_checks import tools_in
from traces.attribution.outcomes import DERIVED
from traces.bundles import TurnBundle, read_bundles
from traces.joins.standing import standing
from traces.storage.connections import lake_cursor
from traces.storage.row_records import record_of
from traces.verifiers.check import Check
from traces.verifiers.registry import TurnCheck, turn_check

_FETCH_ROWS = 1000
_RUNS_CODE = "python_tests"

MANY = 20
"""Verdicts of a turn that are made again at most, the latest."""

_SILENT = """
    CREATE TABLE judged.silent AS
    SELECT DISTINCT turn_id FROM judged.named SEMI JOIN (
        SELECT feedback_id FROM feedback {at}
        WHERE kind = 'verifier' AND reference IS NOT NULL AND (value IS NULL OR isnan(value)))
        USING (feedback_id)
"""
# The latest verdict of each verifier that has a reference and never gave a score. The latest turns
# come first: they are the ones to be run where not all are.
_UNSCORED = f"""
    CREATE TABLE judged.unscored AS
    SELECT dense_rank() OVER (ORDER BY t.started_at DESC, t.turn_id) AS key, t.turn_id,
           c.feedback_id, c.created_at
    FROM (SELECT * FROM turns {{at}} WHERE status = 'ok') t JOIN (
        SELECT n.turn_id, n.feedback_id, f.created_at
        FROM (FROM judged.named SEMI JOIN judged.silent USING (turn_id)) n JOIN (
            SELECT *, value IS NULL OR isnan(value) AS silent FROM feedback {{at}}
            WHERE kind = 'verifier' AND annotator IS DISTINCT FROM 'model') f USING (feedback_id)
        WINDOW own AS (PARTITION BY n.turn_id, f.name)
        QUALIFY bool_and(f.silent) OVER own AND f.reference IS NOT NULL AND row_number() OVER (
            PARTITION BY n.turn_id, f.name, f.reference IS NULL
            ORDER BY f.created_at DESC, n.feedback_id DESC) = 1) c USING (turn_id)
    QUALIFY row_number() OVER (
        PARTITION BY t.turn_id ORDER BY c.created_at DESC, c.feedback_id DESC) <= {MANY}
"""
_SIGNALS = """
    SELECT u.key, f.* FROM judged.unscored u
    JOIN (SELECT * FROM feedback {at}) f USING (feedback_id)
    ORDER BY u.key, f.created_at, f.feedback_id
"""


def recheck(connection: duckdb.DuckDBPyConnection, run_code: int, at: str) -> Iterator[Feedback]:
    """Yield the verdicts of checks made again; at most `run_code` answers' Python is run.

    What was found by running is taken from the outcome that stands, for the same code and tests.
    """
    connection.execute(_SILENT.format(at=at))
    if not connection.execute("SELECT count(*) FROM judged.silent").fetchall()[0][0]:
        return
    connection.execute(_UNSCORED.format(at=at))
    picked = "SELECT DISTINCT key, turn_id, true AS whole FROM judged.unscored"
    bundles = read_bundles(lake_cursor(connection), picked, outcomes=f"outcomes {at}", at=at)
    for bundle, signals in zip(bundles, _signals(connection, at), strict=True):
        for signal in signals:
            mark = ""
            if _verifier(signal) == _RUNS_CODE:
                mark = f" (of code {_digest(bundle.hops)})"
                kept = _kept(bundle, signal, mark)
                if kept is not None:
                    yield kept
                if kept is not None or run_code <= 0:
                    continue
                run_code -= 1
            found = check_again(bundle.hops, signal)
            if found.passed is not None:
                yield _verdict(bundle, signal, found.passed, f"{found.detail}{mark}")


def check_again(hops: Sequence[Hop], signal: Feedback) -> Check:
    """Return what a verdict's check finds of a turn; no verdict where it cannot be made."""
    reference = signal.reference
    if reference is None:
        return Check(None, "no answer to check")
    return judged_again(hops, lambda tools: turn_check(reference, tools))


def judged_again(
    hops: Sequence[Hop], check_of: Callable[[Sequence[Mapping[str, Any]]], TurnCheck | None]
) -> Check:
    """Return what a check finds of a turn's answers, made for the tools that each was offered.

    Where calls are checked any of several may be the right one. Else the last answer decides, but
    what an earlier one did for good (a call that safety forbids) fails the turn, and of a turn that
    ends with a call nobody knows where it led.
    """
    answers = [hop for hop in standing(hops) if hop.role == "answer" and hop.completion is not None]
    if not answers:
        return Check(None, "no answer to check")
    called: list[Check] = []
    said: list[Check] = []
    for hop in answers:
        check = check_of(tools_in(hop.tools))
        if check is None or hop.completion is None:
            return Check(None, "the reference describes no check")
        ends = hop is answers[-1] and not hop.completion.tool_calls
        if ends and not (check.judges_calls and called):
            said.append(check.last(hop.completion))
        elif not check.judges_calls:
            said.append(check.amid(hop.completion))
        elif hop.completion.tool_calls:
            called.append(check.amid(hop.completion))
    if called:
        # One that cannot be judged leaves open whether it was the right one.
        return min(called, key=lambda each: (True, None, False).index(each.passed))
    return next((each for each in said if each.passed is False), said[-1])


def _verifier(signal: Feedback) -> str | None:
    try:
        reference = json.loads(signal.reference or "null")
    except (ValueError, RecursionError):
        return None
    return str(reference.get("verifier")) if isinstance(reference, dict) else None


def _verdict(bundle: TurnBundle, signal: Feedback, passed: bool, detail: str) -> Feedback:
    """Return what a check finds, in the place of the verdict that had no score."""
    return Feedback(
        source=DERIVED,
        target_kind="turn",
        target_id=bundle.turn.turn_id,
        kind="verifier",
        name=signal.name,
        value=float(passed),
        detail=f"checked again: {detail}",
        created_at=signal.created_at,
        annotator="code",
        reference=signal.reference,
    )


def _kept(bundle: TurnBundle, signal: Feedback, mark: str) -> Feedback | None:
    """Return what running the same code against the same tests had found."""
    for raw in json.loads(bundle.outcome.signals):
        known = Feedback.model_validate(raw)
        same = known.source == DERIVED and known.reference == signal.reference
        if same and (known.detail or "").endswith(mark):
            return known
    return None


def _digest(hops: Sequence[Hop]) -> str:
    """Return the digest of the text that the tests are run on."""
    texts = [h.completion.content for h in standing(hops) if h.role == "answer" and h.completion]
    return short_digest(content_id(texts[-1:]))


def _signals(connection: duckdb.DuckDBPyConnection, at: str) -> Iterator[list[Feedback]]:
    """Yield the verdicts to be made again of each turn, in order of the turns."""
    cursor = lake_cursor(connection)
    cursor.execute(_SIGNALS.format(at=at))
    names = [column[0] for column in cursor.description]

    def rows() -> Iterator[dict[str, object]]:
        while fetched := cursor.fetchmany(_FETCH_ROWS):
            yield from (dict(zip(names, row, strict=True)) for row in fetched)

    for _, told in groupby(rows(), key=lambda row: row["key"]):
        yield [record_of(Feedback, "feedback", row) for row in told]
