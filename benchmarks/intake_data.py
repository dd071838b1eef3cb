"""Made-up traffic for the intake benchmark: a spool of a MoL server, and the same calls as spans.

Conversations of four turns; each turn is routed by L0 and answered by one slot from its own
view, which grows with the conversation; one turn in ten is rated. The texts are drawn from
3,000 made-up words, so that they compress like text and not like a repeated line. Everything
follows from the seed.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from serving.records import Feedback, Hop, Message, Turn, hop_id_of

STARTS = datetime(2026, 11, 2, tzinfo=UTC)
TURNS = 4
"""Of a conversation."""
SLOTS = {"L0": "0a1b2c3d4e5f", "L1": "1b2c3d4e5f60", "L2": "3fa9c1d2e4b5", "L3": "9c8b7a695847"}
"""Slot to the digest of the version that answers."""
WORKLOADS = ("chat", "agent", "code", "page")
USERS = 1000
GAP = timedelta(seconds=2)
"""Between two turns of the deployment: 86,400 hops a day."""
_WORDS = 3000
_SYSTEM_WORDS = 60
_ASKED_WORDS = 20
_ANSWERED_WORDS = 60
_RATED_PERCENT = 10


class Traffic:
    """Turns of a made-up deployment, one after another."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._words = [f"w{self._random.randrange(36**5):x}" for _ in range(_WORDS)]
        self._systems = {slot: self._text(_SYSTEM_WORDS) for slot in SLOTS}
        self._route_prompt = "\n" + self._text(10)
        self._hop, self._turn = _templates()
        self._number = 0

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(self._words, k=words))

    def conversation(self) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
        """Yield the hops and the record of each turn, as `model_dump(mode="json")` has them."""
        name = f"conversation-{self._number}"
        slot = self._random.choice(list(SLOTS))
        who = {"conversation_id": name, "user": f"user-{self._random.randrange(USERS)}"}
        who["workload"] = WORKLOADS[list(SLOTS).index(slot)]
        view = [_said("system", self._systems[slot])]
        for position in range(TURNS):
            asked = self._text(_ASKED_WORDS)
            view.append(_said("user", asked))
            answer = _said("assistant", self._text(_ANSWERED_WORDS))
            started = STARTS + self._number * GAP
            routed = [*view[1:-1], _said("user", asked + self._route_prompt)]
            common = who | {"turn_id": f"turn-{self._number}"}
            hops = [
                self._call("route", "L0", routed, _said("assistant", slot), started, common),
                self._call("answer", slot, list(view), answer, started + GAP / 10, common),
            ]
            view.append(answer)
            yield hops, self._record(hops, position, asked, common)
            self._number += 1

    def _call(
        self, role: str, slot: str, messages: list[dict[str, Any]], answer: dict[str, Any],
        started: datetime, common: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        prompt_tokens = sum(len(m["content"]) for m in messages) // 5
        return self._hop | common | {
            "seq": 2 * self._number + (role == "answer"),
            "role": role,
            "model": slot,
            "served_name": f"{slot}@{SLOTS[slot]}",
            "messages": messages,
            "completion": answer,
            "response_id": f"chatcmpl-{role}-{self._number}",
            "propensity": 1.0 if role == "route" else None,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(answer["content"]) // 5,
            "cached_tokens": prompt_tokens // 2,
            "started_at": started.isoformat().replace("+00:00", "Z"),
            "duration_s": round(self._random.lognormvariate(-0.5, 0.6), 6),
            "ttft_s": round(self._random.lognormvariate(-2.5, 0.5), 6),
        }  # fmt: skip

    def _record(
        self, hops: list[dict[str, Any]], position: int, asked: str, common: dict[str, Any]
    ) -> dict[str, Any]:
        route, answer = hops
        return self._turn | common | {
            "position": position,
            "request": asked,
            "answer": answer["completion"],
            "slot": answer["model"],
            "digest": SLOTS[answer["model"]],
            "hop_ids": [hop_id_of(hop) for hop in hops],
            "response_ids": [answer["response_id"]],
            "started_at": route["started_at"],
            "duration_s": round(route["duration_s"] + answer["duration_s"], 6),
        }  # fmt: skip

    def rating(self, turn: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the user said about a turn, if anything."""
        drawn = self._random.randrange(100)
        if drawn >= _RATED_PERCENT:
            return None
        return Feedback(
            source="mol",
            target_kind="turn",
            target_id=turn["turn_id"],
            kind="thumb",
            name="thumb",
            value=1.0 if drawn % 4 else -1.0,
            user=turn["user"],
            created_at=datetime.fromisoformat(turn["started_at"]) + timedelta(minutes=1),
        ).model_dump(mode="json")


def write_spool(path: Path, hops: int, seed: int = 0) -> int:
    """Write a spool with at least so many hops; return how many it holds."""
    traffic, written = Traffic(seed), 0
    with path.open("wb") as file:
        while written < hops:
            for calls, turn in traffic.conversation():
                lines = [_line("hop", call) for call in calls] + [_line("turn", turn)]
                rating = traffic.rating(turn)
                if rating is not None:
                    lines.append(_line("feedback", rating))
                file.write(b"".join(lines))
                written += len(calls)
    return written


def hop_dicts(hops: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the hops of such a spool alone, at least so many."""
    traffic, made = Traffic(seed), 0
    while made < hops:
        for calls, _ in traffic.conversation():
            yield from calls
            made += len(calls)


def _line(kind: str, record: dict[str, Any]) -> bytes:
    return orjson.dumps({"kind": kind, "record": record}, option=orjson.OPT_APPEND_NEWLINE)


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content, "tool_calls": [], "tool_call_id": None}


def _templates() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a hop and a turn with all fields, as the recorder writes them."""
    said = Message(role="user")
    hop = Hop(
        source="mol", conversation_id="", seq=0, role="answer", model="L2", messages=(said,),
        params='{"max_tokens":256,"temperature":0.0}', finish_reason="stop", status="ok",
        started_at=STARTS, duration_s=0.5, harness_version="mol-loop/0.1.0",
    )  # fmt: skip
    turn = Turn(
        turn_id="", source="mol", conversation_id="", position=0, request="", decision="routed",
        status="ok", hop_ids=(), started_at=STARTS, duration_s=0.5,
    )  # fmt: skip
    return hop.model_dump(mode="json"), turn.model_dump(mode="json")
