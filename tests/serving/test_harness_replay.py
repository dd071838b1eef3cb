"""Proves that Mind Lab's harness in front and vLLM behind work with our server between them.

A recorded conversation of the three is played again: the stub answers what vLLM answered to
exactly what was asked of it, the test sends what the harness sent. Server, recorder, ingest
and attribution are real. `examples/record_harness.py` made the recording, with the real
harness and the real vLLM; `tests/infra/test_vllm_harness.py` does so again where they are.
"""

import gzip
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from mol_server import Running, mol_server
from stub_engine import Answer, Asked, stub_engine

from serving.hop_role import KEY_HEADER
from serving.records import Hop, Turn
from serving.slot_table import SlotFile, write_slot_file
from serving.slots import load_profile
from serving.sse import reassemble
from traces.attribute import attribute
from traces.ingest import ingest
from traces.read import TurnBundle, read_turns

FILE = Path(__file__).parents[1] / "data" / "mindlab_harness.json.gz"
RECORDING: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
HOPS = RECORDING["hops"]
TIMES = {"started_at", "duration_s", "ttft_s", "seq"}
LEFT = next(number for number, hop in enumerate(HOPS) if hop["abandoned"])


@dataclass
class Replay:
    """What came of it."""

    home: Path
    answers: list[httpx.Response] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    others: list[httpx.Response] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)
    """What the engine was asked that vLLM was not."""
    abandoned: int = 0


def events(text: str) -> list[str]:
    return [event + "\n\n" for event in text.split("\n\n") if event]


def left_with() -> list[str]:
    """Return the events that came through before the client left."""
    return events(HOPS[LEFT]["answer"])


class Vllm:
    """Answers as vLLM did, each recorded answer once."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.waiting = [dict(exchange) for exchange in RECORDING["engine"]]
        through = len(left_with())
        self.waiting[LEFT]["answer"] = "".join(events(self.waiting[LEFT]["answer"])[:through])

    def __call__(self, asked: Asked) -> Answer | None:
        if asked.body["max_tokens"] == 1:
            return None  # the server's own test of a version
        for exchange in self.waiting:
            if exchange["request"] == asked.body:
                self.waiting.remove(exchange)
                return Answer(
                    raw=exchange["answer"].encode(),
                    status=exchange["status"],
                    fault="hang" if exchange["abandoned"] else "",
                )
        self.replay.unknown.append(asked.body)
        return Answer(status=500, error="vLLM was not asked this.")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    home = tmp_path_factory.mktemp("home")
    replay = Replay(home)
    table = SlotFile.model_validate(RECORDING["slots"])
    for entry in table.slots:
        (home / str(entry.path)).mkdir(parents=True)
    write_slot_file(home / "slots.json", table)
    with stub_engine() as stub, mol_server(home, stub.url) as mol:
        stub.reply = Vllm(replay)
        with httpx.Client(base_url=mol.url, timeout=60) as client:
            for hop in HOPS:
                play(client, hop, replay)
            replay.others = [
                client.request(o["method"], o["path"], headers=o["headers"], json=o["request"])
                for o in RECORDING["other"]
            ]
        finish(mol, replay)
        deadline = time.monotonic() + 20
        while stub.running:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        replay.abandoned = stub.abandoned
    return replay


def play(client: httpx.Client, hop: dict[str, Any], replay: Replay) -> None:
    """Send a hop as the harness did; leave where its client left."""
    with client.stream("POST", hop["path"], headers=hop["headers"], json=hop["request"]) as answer:
        text = ""
        for piece in answer.iter_text():
            text += piece
            if hop["abandoned"] and text == hop["answer"]:
                break
    replay.answers.append(answer)
    replay.texts.append(text)


def finish(mol: Running, replay: Replay) -> None:
    replay.records = mol.records("hop", len(RECORDING["records"]))


def test_the_engine_is_asked_what_vllm_was_asked(replay: Replay) -> None:
    assert replay.unknown == []


@pytest.mark.parametrize("number", range(len(HOPS)))
def test_the_harness_gets_what_it_got(replay: Replay, number: int) -> None:
    hop, answer = HOPS[number], replay.answers[number]

    assert answer.status_code == hop["status"]
    assert {n: answer.headers[n] for n in hop["answer_headers"]} == hop["answer_headers"]
    assert replay.texts[number] == hop["answer"]


def test_what_it_got_is_vllms_answer_with_nothing_of_ours() -> None:
    """The recording itself: only names differ, and what was asked for the record is null."""
    for hop, engine in zip(HOPS, RECORDING["engine"], strict=True):
        asked, sent = dict(hop["request"]), dict(engine["request"])
        slot = asked.pop("model")
        assert sent.pop("model") == engine_name(slot)
        added = sent.keys() - asked.keys()
        assert added <= {"return_token_ids", "logprobs"}
        assert {name: sent[name] for name in asked} == asked
        if hop["status"] != 200:
            assert hop["answer"] == engine["answer"]
            continue
        for got, said in zip(data_of(hop["answer"]), data_of(engine["answer"]), strict=False):
            assert got == unasked(said, slot, "logprobs" in added)


def engine_name(slot: str) -> str:
    return next(e["champion"] for e in RECORDING["slots"]["slots"] if e["slot"] == slot)


def data_of(answer: str) -> list[Any]:
    if answer.startswith("{"):
        return [json.loads(answer)]
    data = [event.strip().removeprefix("data: ") for event in events(answer)]
    return [json.loads(one) for one in data if one != "[DONE]"]


def unasked(said: dict[str, Any], slot: str, with_logprobs: bool) -> dict[str, Any]:
    null = {"token_ids"} | ({"logprobs"} if with_logprobs else set())
    shown = said | {"model": slot}
    if "prompt_token_ids" in shown:
        shown["prompt_token_ids"] = None
    shown["choices"] = [
        {name: None if name in null else value for name, value in choice.items()}
        for choice in said["choices"]
    ]
    return shown


@pytest.mark.parametrize("number", range(len(HOPS)))
def test_the_hop_is_recorded_as_it_was(replay: Replay, number: int) -> None:
    again = replay.records[number]
    # Fields that came after the recording are there, and say nothing.
    before = Hop.model_validate(RECORDING["records"][number]).model_dump(mode="json")
    # How much had come when the client left is chance; its own test has it.
    chance = {"completion", "completion_token_ids"} if number == LEFT else set()

    assert {k: v for k, v in again.items() if k not in TIMES | chance} == {
        k: v for k, v in before.items() if k not in TIMES | chance
    }


def test_the_records_say_what_the_hop_was(replay: Replay) -> None:
    """Against the exchanges, not against what an earlier recorder made of them."""
    for record, hop, engine in zip(replay.records, HOPS, RECORDING["engine"], strict=True):
        assert record["conversation_id"] == hop["headers"][KEY_HEADER]
        assert record["model"] == engine["request"]["model"]
        assert (record["role"] == "route") == ("x-mol-internal-hop" in hop["headers"])
        asked = [m.get("content") or "" for m in hop["request"]["messages"]]
        assert [m["content"] for m in record["messages"]] == asked
        if hop["status"] != 200 or hop["abandoned"]:
            continue
        if hop["request"]["stream"]:
            stream = reassemble(engine["answer"])
            message, ids = stream.message(), stream.token_ids
            prompt = stream.prompt_token_ids
        else:
            whole = json.loads(engine["answer"])
            message, ids = whole["choices"][0]["message"], whole["choices"][0]["token_ids"]
            prompt = whole["prompt_token_ids"]
        assert message is not None
        assert record["completion"]["content"] == (message["content"] or "")
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        assert [call["arguments"] for call in record["completion"]["tool_calls"]] == calls
        assert record["completion_token_ids"] == ids
        assert record["prompt_token_ids"] == prompt
        assert len(ids) == record["completion_tokens"]
        assert len(prompt) == record["prompt_tokens"]


def test_the_client_that_left_freed_the_engine_and_is_recorded(replay: Replay) -> None:
    assert replay.abandoned == 1
    record = replay.records[LEFT]
    assert record["status"] == "abandoned"
    assert record["completion"]["content"] == reassemble("".join(left_with())).content
    assert record["completion"]["content"]


def test_health_and_keys_are_answered_as_the_harness_expects(replay: Replay) -> None:
    paths = {other["path"] for other in RECORDING["other"]}
    assert {"/readiness", "/_internal/routing-keys"} <= paths
    assert [a.status_code for a in replay.others] == [200] * len(RECORDING["other"])


@pytest.fixture(scope="module")
def turns(replay: Replay, tmp_path_factory: pytest.TempPathFactory) -> list[TurnBundle]:
    """The turns that the join makes of the replayed spool, in order."""
    lake = tmp_path_factory.mktemp("lake")
    ingest(lake, replay.home / "spool")
    report = attribute(lake, load_profile())
    found = sorted(read_turns(lake), key=lambda bundle: bundle.turn.started_at)
    assert report.turns == len(found)
    return found


def client_turns() -> list[list[dict[str, Any]]]:
    """Return the client's requests by turn."""
    last = RECORDING["client"][-1]["turn"]
    return [[s for s in RECORDING["client"] if s["turn"] == n] for n in range(last + 1)]


def test_every_turn_of_the_client_is_one_turn_of_the_lake(turns: list[TurnBundle]) -> None:
    asked = client_turns()
    assert len(turns) == len(asked)
    for bundle, requests in zip(turns, asked, strict=True):
        first, last = requests[0], requests[-1]
        text = first["request"].get("input") or first["request"]["messages"][-1]["content"]
        assert bundle.turn.request == text.strip()  # the harness strips it
        assert bundle.turn.source == "mol"
        assert len(bundle.hops) == len(bundle.turn.hop_ids)
        answers = [hop for hop in bundle.hops if hop.role == "answer"]
        if last["status"] == 200:
            assert len(answers) == len(requests)
        if last["status"] == 200 and not last["left"]:
            assert bundle.turn.status == "ok"
            assert bundle.turn.answer is not None
            assert bundle.turn.answer.content == client_text(last)
            assert bundle.turn.slot == answers[-1].slot == bundle.hops[0].completion.content
            assert bundle.turn.digest == answers[-1].digest


def client_text(said: dict[str, Any]) -> str:
    """Return the text that the client got."""
    if said["path"] == "/v1/responses":
        stream = reassemble(said["answer"]).response if said["request"].get("stream") else None
        response = stream or json.loads(said["answer"])
        parts = [p for item in response["output"] for p in item.get("content") or ()]
        return "".join(part.get("text") or "" for part in parts)
    if said["request"].get("stream"):
        return reassemble(said["answer"]).content
    return json.loads(said["answer"])["choices"][0]["message"]["content"] or ""


def test_turns_of_one_conversation_are_together(turns: list[TurnBundle]) -> None:
    def together(numbers: range) -> set[tuple[str, int]]:
        found: list[Turn] = [turns[n].turn for n in numbers]
        assert len({turn.conversation_id for turn in found}) == 1
        return {(turn.conversation_id, turn.position) for turn in found}

    chat, responses = together(range(3)), together(range(5, 8))
    assert [position for _, position in sorted(chat)] == [0, 1, 2]
    assert [position for _, position in sorted(responses)] == [0, 1, 2]
    alone = [turns[n].turn for n in (3, 4, 8, 9, 10)]
    ids = {turn.conversation_id for turn in alone}
    assert len(ids | {c for c, _ in chat} | {c for c, _ in responses}) == 7


def test_the_turns_that_failed_are_told_apart(turns: list[TurnBundle]) -> None:
    others = [b.turn for b in turns if b.turn.status != "ok"]
    assert [(t.status, t.slot) for t in others] == [("abandoned", None), ("failed", None)]
    assert "maximum context length" in str(others[1].error)
