"""Proves what the real vLLM of `.venv-vllm` does with the default base and adapters made here.

Nothing is faked; the adapters are random, for what they answer does not matter here.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from infra.base_model import DEFAULT_FOLDER
from infra.vllm_server import VENV, start

# Starting takes about a minute, and the first test pays for it.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer"}},
            "required": ["minutes"],
        },
    },
}


QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
FIRST, LATER = "L1@000000000001", "L1@000000000002"


@dataclass(frozen=True)
class Served:
    """A running vLLM, and what transformers and PEFT say to the same question."""

    client: httpx.Client
    folders: dict[str, Path]
    expected: dict[str, list[int]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The real vLLM over the default base, with one adapter from the start."""
    if not (VENV / "bin" / "python").exists() or not (REPOSITORY / DEFAULT_FOLDER).exists():
        pytest.fail("vLLM or the base model is missing; run these tests with 'make vllm-test'")
    folder = tmp_path_factory.mktemp("vllm")
    folders = {name: folder / name for name in (FIRST, LATER)}
    expected = {name: make_adapter(folders[name], seed) for seed, name in enumerate(folders)}
    with (
        start(
            REPOSITORY / DEFAULT_FOLDER,
            lora_modules={FIRST: folders[FIRST]},
            log=folder / "log",
        ) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=120) as client,
    ):
        yield Served(client, folders, expected)


def make_adapter(folder: Path, seed: int) -> list[int]:
    """Write a random rank-8 adapter and return the eight tokens that it answers in PEFT."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(REPOSITORY / DEFAULT_FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(REPOSITORY / DEFAULT_FOLDER)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(base, config)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    tokens = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    return tokens[0, prompt["input_ids"].shape[1] :].tolist()


def chat(client: httpx.Client, model: str, **options):
    body = {"model": model, "messages": QUESTION, "max_tokens": 16, "temperature": 0, **options}
    response = client.post("/v1/chat/completions", json=body)
    assert response.is_success, response.text
    return response.json()


def said(client: httpx.Client, model: str, **options) -> str:
    return chat(client, model, **options)["choices"][0]["message"]["content"]


def answered(client: httpx.Client, model: str) -> list[int]:
    """Return the first eight tokens of the answer to the question."""
    answer = chat(client, model, return_token_ids=True, max_tokens=8)
    return answer["choices"][0]["token_ids"]


def load(served: Served, name: str) -> None:
    """Load an adapter unless it is loaded."""
    if name not in [m["id"] for m in served.client.get("/v1/models").json()["data"]]:
        body = {"lora_name": name, "lora_path": str(served.folders[name])}
        served.client.post("/v1/load_lora_adapter", json=body).raise_for_status()


def test_the_base_answers_with_its_tokens(served: Served) -> None:
    client = served.client
    answer = chat(client, "base", return_token_ids=True)

    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]


def test_an_adapter_named_at_the_start_answers_as_in_peft(served: Served) -> None:
    tokens = answered(served.client, FIRST)

    assert tokens == served.expected[FIRST]
    assert tokens != answered(served.client, "base")


def test_an_adapter_loaded_later_answers_as_in_peft(served: Served) -> None:
    load(served, LATER)
    tokens = answered(served.client, LATER)

    assert tokens == served.expected[LATER]
    assert tokens != answered(served.client, FIRST)


def test_an_unloaded_adapter_is_no_longer_offered(served: Served) -> None:
    load(served, LATER)
    served.client.post("/v1/unload_lora_adapter", json={"lora_name": LATER}).raise_for_status()
    names = [m["id"] for m in served.client.get("/v1/models").json()["data"]]

    assert names == ["base", FIRST]


def test_a_choice_is_one_of_those_given(served: Served) -> None:
    client = served.client
    choices = ["L0", "L1", "L2", "L3"]

    assert said(client, "base", structured_outputs={"choice": choices}) in choices


def test_a_written_tool_call_is_parsed(served: Served) -> None:
    client = served.client
    # The base never learned this form, so it is given no choice but the number.
    call = '<tool_call>{"name": "set_timer", "arguments": {"minutes": %d}}</tool_call>'
    answer = chat(
        client,
        "base",
        messages=[{"role": "user", "content": "Set a timer for 5 minutes."}],
        tools=[TIMER],
        structured_outputs={"choice": [call % n for n in (5, 10)]},
        max_tokens=64,
    )

    function = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function["name"] == "set_timer"
    assert json.loads(function["arguments"])["minutes"] in (5, 10)


def test_the_last_message_is_continued(served: Served) -> None:
    client = served.client
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    options = {"continue_final_message": True, "add_generation_prompt": False}

    assert said(client, "base", messages=messages, **options).lstrip().startswith("Paris")


def test_the_prompt_has_the_tokens_of_our_own_rendering(served: Served) -> None:
    from transformers import AutoTokenizer

    client = served.client
    tokenizer = AutoTokenizer.from_pretrained(REPOSITORY / DEFAULT_FOLDER)
    messages = [
        {"role": "user", "content": "Wake me in 5 minutes."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "set_timer", "arguments": '{"minutes": 5}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    ours = tokenizer.apply_chat_template(
        messages, tools=[TIMER], add_generation_prompt=True, return_dict=True
    )["input_ids"]

    answer = chat(client, "base", messages=messages, tools=[TIMER], return_token_ids=True)
    assert answer["prompt_token_ids"] == ours


def test_its_sockets_are_all_in_a_folder_that_goes_with_it(served: Served) -> None:
    temporary = Path(tempfile.gettempdir())

    (folder,) = temporary.glob("mol-vllm-*")
    assert any(path.is_socket() for path in folder.iterdir())
    assert not any(path.is_socket() or "vllm_dist" in path.name for path in temporary.iterdir())
