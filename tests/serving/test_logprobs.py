"""Proves that engines tell the log-probabilities of given tokens, in-process and over HTTP.

Against transformers and PEFT themselves, on the tiny model; a server that ignores the forced token
is a few lines of Starlette.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from engine_calls import use
from engine_server import serve_app, tiny_engine_server
from peft import PeftModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM, AutoTokenizer

from serving.embedded import EmbeddedEngine
from serving.engine import Engine
from serving.errors import EngineRefused, EngineUnavailable
from serving.probes import CONTEXT_TOKENS, SCORED_TOKENS, probe_token_ids

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
NAME = "L1@aaaaaaaaaaaa"
TEXTS = ((5, 9, 300, 41, 7, 88), (5, 9, 300), (12, 13, 14, 15))


@pytest.fixture(scope="module")
def url(
    tmp_path_factory: pytest.TempPathFactory, base: Path, adapters: dict[str, Path]
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engine")
    with tiny_engine_server(folder, {NAME: adapters[NAME]}, base) as url:
        yield url


def expected(base: Path, adapter: Path | None, ids: tuple[int, ...]) -> list[float]:
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.inference_mode():
        logits = model.eval()(input_ids=torch.tensor([ids])).logits[0]
    logprobs = torch.log_softmax(logits.double(), -1)
    return [float(logprobs[n - 1, ids[n]]) for n in range(1, len(ids))]


async def told(engine: Engine, *names: str) -> list[list[tuple[float, ...]]]:
    """Ask for all texts under all names at once."""
    return [
        list(await asyncio.gather(*(engine.logprobs(name, ids) for ids in TEXTS))) for name in names
    ]


def test_they_are_those_of_transformers_and_peft(
    url: str, base: Path, adapters: dict[str, Path], engine: EmbeddedEngine
) -> None:
    async def in_process() -> Any:
        await engine.load_adapter(NAME, adapters[NAME])
        return await told(engine, "base", NAME)

    for found in (asyncio.run(in_process()), use(url, lambda engine: told(engine, "base", NAME))):
        for texts, adapter in zip(found, (None, adapters[NAME]), strict=True):
            for logprobs, ids in zip(texts, TEXTS, strict=True):
                assert logprobs == pytest.approx(expected(base, adapter, ids), abs=1e-4)


def test_only_those_from_the_first_asked_for_are_told(engine: EmbeddedEngine) -> None:
    whole, tail = (asyncio.run(engine.logprobs("base", TEXTS[0], first)) for first in (1, 4))
    assert tail == pytest.approx(whole[3:], abs=1e-5)
    assert len(tail) == 2


def test_an_unknown_name_is_not_found(url: str, engine: EmbeddedEngine) -> None:
    for ask in (
        lambda: asyncio.run(engine.logprobs("L9", TEXTS[0])),
        lambda: use(url, lambda engine: engine.logprobs("L9", TEXTS[0])),
    ):
        with pytest.raises(EngineRefused) as refusal:
            ask()
        assert refusal.value.status == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": "a text"}, {"prompt": []}, {"prompt": [1, -2]}, {"prompt": [True]},
        {"allowed_token_ids": None}, {"allowed_token_ids": [1, 2]}, {"max_tokens": 2},
        {"logprobs": None},
    ],
)  # fmt: skip
def test_other_completions_are_refused(url: str, wrong: dict[str, Any]) -> None:
    right = {"prompt": [1, 2], "allowed_token_ids": [3], "max_tokens": 1, "logprobs": 0}
    answers = [
        httpx.post(f"{url}/v1/completions", json=body, trust_env=False)
        for body in (right, right | wrong)
    ]
    assert [answer.status_code for answer in answers] == [200, 400]


def test_a_server_that_does_not_force_the_token_is_none() -> None:
    async def answer(request: Request) -> JSONResponse:
        choice = {"token_ids": [99], "logprobs": {"token_logprobs": [-0.1]}}
        return JSONResponse({"choices": [choice]})

    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    with serve_app(app) as url, pytest.raises(EngineUnavailable, match="not as an OpenAI-compat"):
        use(url, lambda engine: engine.logprobs("base", TEXTS[0]))


def test_every_probe_fills_the_largest_block_before_what_is_scored(base: Path) -> None:
    probes = probe_token_ids(AutoTokenizer.from_pretrained(base))
    assert len(set(probes)) == len(probes) == 4
    assert {len(ids) for ids in probes} == {CONTEXT_TOKENS + SCORED_TOKENS}
    assert CONTEXT_TOKENS > 128


def test_a_base_without_a_template_has_probes_too(base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    with_template = probe_token_ids(tokenizer)
    tokenizer.chat_template = None
    plain = probe_token_ids(tokenizer)
    assert len(plain) == len(with_template)
    assert [ids[-SCORED_TOKENS:] for ids in plain] == [
        ids[-SCORED_TOKENS:] for ids in with_template
    ]
