"""Proves in which order a conversation's turns are read where clocks say something else.

Real lakes and real attribution; the conversations are made up.
"""

from pathlib import Path
from typing import Any

import pytest
from trace_records import PROFILE, at, hop, signal, turn_of, user, write_spool

from serving.records import UNDATED, Feedback, Hop, Turn
from traces.analytics.views import query
from traces.attribute import attribute
from traces.ingest import ingest

WRONG = "No, that's wrong"


def conversation(*turns: tuple[str, int, float, str]) -> list[Hop | Turn | Feedback]:
    """Return turns of one conversation: name, place, seconds, request."""
    records: list[Hop | Turn | Feedback] = []
    for name, place, seconds, request in turns:
        own: dict[str, Any] = {"conversation_id": "c1", "turn_id": name}
        made = hop(messages=(user(request),), started_at=at(seconds), response_id=name, **own)
        records += [
            made, turn_of([made], position=place, started_at=at(seconds), request=request, **own)
        ]  # fmt: skip
    return records


def thumb(seconds: float, **fields: Any) -> Feedback:
    whole = {"target_kind": "conversation", "target_id": "c1", "created_at": at(seconds)}
    return signal("thumb", -1.0, user="q", **whole | fields)


def settled(folder: Path, records: list[Hop | Turn | Feedback]) -> dict[str, tuple[str, ...]]:
    """Return the names of the signals of each turn."""
    ingest(folder / ".mol", write_spool(folder / "s.jsonl", records))
    attribute(folder / ".mol", PROFILE)
    names = "list_transform(from_json(signals, '[\"JSON\"]'), lambda s: s->>'name')"
    return {
        k: tuple(v) for k, v in query(folder / ".mol", f"SELECT turn_id, {names} FROM outcomes")[1]
    }


@pytest.mark.parametrize("second", [50, 150], ids=["backwards", "forwards"])
def test_places_are_the_order_whatever_clocks_say(tmp_path: Path, second: float) -> None:
    turns = conversation(("a", 0, 100, "Weather in Rome"), ("b", 1, second, WRONG))

    assert settled(tmp_path, [*turns, thumb(200)]) == {"a": ("correction_phrase",), "b": ("thumb",)}


def test_turns_that_share_places_are_in_order_of_time(tmp_path: Path) -> None:
    """Somebody went back to an earlier place of the conversation and asked something else."""
    turns = conversation(
        ("a", 0, 100, "Weather in Rome"), ("b", 1, 200, "And in Oslo"), ("c", 2, 300, WRONG),
        ("d", 1, 400, "List the cats"), ("e", 2, 500, "Thanks"),
    )  # fmt: skip

    assert settled(tmp_path, [*turns, thumb(450)]) == {
        "a": (), "b": ("correction_phrase",), "c": (), "d": ("thumb", "thanks_phrase"), "e": (),
    }  # fmt: skip


def test_a_word_about_a_conversation_is_about_its_last_turn_so_far(tmp_path: Path) -> None:
    turns = conversation(("a", 0, 100, "Weather in Rome"), ("b", 1, 200, "And in Oslo"))
    words = [thumb(99), thumb(150), thumb(160), thumb(0, created_at=UNDATED)]

    assert settled(tmp_path, [*turns, *words]) == {"a": ("thumb", "thumb"), "b": ("thumb",)}
