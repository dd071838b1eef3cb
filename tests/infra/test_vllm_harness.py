"""Proves that Mind Lab's harness, unchanged, works with our server below it and the real vLLM.

Nothing is faked. It needs `.venv-vllm` and a checkout of
github.com/MindLab-Research/Mixture-of-LoRA-Harness, named by MOL_HARNESS; without that it is
skipped, and the recording in `tests/serving/test_harness_replay.py` stands in for it.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from examples.record_harness import record
from infra.base_model import DEFAULT_FOLDER
from infra.vllm_server import VENV, start
from serving.sse import reassemble
from traces.ingest import ingest
from traces.read import read_turns

HARNESS = os.environ.get("MOL_HARNESS", "")
REPOSITORY = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not HARNESS, reason="MOL_HARNESS names no checkout of Mind Lab's harness"),
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def recording(work: Path) -> dict[str, Any]:
    base = REPOSITORY / DEFAULT_FOLDER
    if not (VENV / "bin" / "python").exists() or not base.exists():
        pytest.fail("vLLM or the base model is missing; run these tests with 'make vllm-test'")
    with start(base, log=work / "log") as vllm:
        return asyncio.run(record(Path(HARNESS).resolve(), vllm, work))


def test_every_request_of_the_client_is_answered(recording: dict[str, Any]) -> None:
    *good, too_long = recording["client"]
    assert [said["status"] for said in good] == [200] * len(good)
    assert too_long["status"] == 400
    assert json.loads(too_long["answer"])["error"]["code"] == "context_length_exceeded"
    assert [said["left"] for said in good].count(True) == 1


def test_the_engine_answers_under_digest_names_and_the_harness_sees_slots(
    recording: dict[str, Any],
) -> None:
    names = {entry["slot"]: entry["champion"] for entry in recording["slots"]["slots"]}
    for hop, engine in zip(recording["hops"], recording["engine"], strict=True):
        slot = hop["request"]["model"]
        assert engine["request"]["model"] == names[slot]
        assert engine["request"].items() >= {**hop["request"], "model": names[slot]}.items()
        if hop["status"] == 200:
            assert f'"model":"{slot}"' in hop["answer"]
            assert "@" not in hop["answer"].split('"choices"')[0]


def test_every_hop_is_recorded_with_the_engines_token_ids(recording: dict[str, Any]) -> None:
    assert len(recording["records"]) == len(recording["hops"])
    for record_, hop in zip(recording["records"], recording["hops"], strict=True):
        if hop["status"] != 200:
            assert record_["status"] == "engine_error"
        elif hop["abandoned"]:
            assert record_["status"] == "abandoned"
        else:
            assert record_["status"] == "ok"
            assert len(record_["prompt_token_ids"]) == record_["prompt_tokens"]
            assert len(record_["completion_token_ids"]) == record_["completion_tokens"]


def test_tool_calls_are_called_and_gone_on_with(recording: dict[str, Any]) -> None:
    called = [
        record_ for record_ in recording["records"]
        if record_["completion"] and record_["completion"]["tool_calls"]
    ]  # fmt: skip
    streamed = [said for said in recording["client"] if '"tool_calls"' in said["answer"]]
    assert len(called) >= 2
    assert any(said["request"].get("stream") for said in streamed)
    stream = next(said for said in streamed if said["request"].get("stream"))
    assert json.loads(reassemble(stream["answer"]).tool_calls[0]["function"]["arguments"])


def test_the_spool_becomes_the_clients_turns(
    recording: dict[str, Any], work: Path, tmp_path: Path
) -> None:
    ingest(tmp_path, work / "home" / "spool")

    turns = sorted((b.turn for b in read_turns(tmp_path)), key=lambda turn: turn.started_at)

    wanted = {said["turn"] for said in recording["client"]}
    assert len(turns) == len(wanted)
    assert [turn.status for turn in turns].count("ok") == len(wanted) - 2
