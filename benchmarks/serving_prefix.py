"""What own views spare the real engine: time to first token and prefix-cache hits.

Conversations of five turns that go back and forth between two slots, once through our server
and once flat: the whole history sent to the engine each time, under the same adapters, as a
server without own views would. Routes are the same by rule, so that no route hop stands in
either way; the next turn comes when the summary is written, as a person takes longer. All
texts differ from the first word, so that no conversation warms the cache for another.
"""

import hashlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks import serving_targets
from benchmarks.serving_mol import put_table
from benchmarks.serving_swaps import hop_lines
from benchmarks.serving_targets import Mol
from infra.base_model import DEFAULT_FOLDER, say_on_stderr
from infra.vllm_server import start
from serving.slot_table import SlotEntry, SlotFile
from serving.slots import load_profile

ADAPTERS = Path(__file__).parents[1] / "examples" / "adapters"
ROUTE = ("L1", "L2", "L1", "L2", "L1")
WORDS = {"L0": "smalltalk", "L1": "household", "L2": "programming", "L3": "frontend"}
"""What a text says to be routed there."""
TEXT_WORDS = 110
MAX_TOKENS = 64
_SYLLABLES = ("ka", "lo", "mi", "ne", "pu", "ra", "so", "ti", "va", "zu", "be", "do", "fi", "gu")


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer as the client saw it."""

    text: str
    ttft_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0


def measure(conversations: int) -> dict[str, Any]:
    """Hold so many conversations each way and return medians."""
    with tempfile.TemporaryDirectory(prefix="mol-prefix-") as name:
        folder = Path(name)
        names = _home(folder / "home")
        with (
            start(DEFAULT_FOLDER, log=folder / "vllm.log") as engine_url,
            serving_targets.mol(folder, engine_url, rules=True) as mol,
        ):
            return _compared(mol, engine_url, names, conversations)


def _compared(
    mol: Mol, engine_url: str, names: dict[str, str], conversations: int
) -> dict[str, Any]:
    own: list[list[Answered]] = []
    flat: list[list[Answered]] = []
    with httpx.Client(trust_env=False, timeout=300) as client:
        _own(client, mol, -1)
        _flat(client, engine_url, names, -1)
        for number in range(conversations):
            for arm in ("own", "flat") if number % 2 == 0 else ("flat", "own"):
                if arm == "own":
                    own.append(_own(client, mol, number))
                else:
                    flat.append(_flat(client, engine_url, names, number))
            say_on_stderr(f"Conversation {number + 1} of {conversations} was held both ways.")
    return {
        "prefix_hit_rate": _hit_rate(own),
        "flat_prefix_hit_rate": _hit_rate(flat),
        "ttft_fifth_ms": _fifth_ms(own),
        "flat_ttft_fifth_ms": _fifth_ms(flat),
        "prefilled_fifth_tokens": _prefilled(own),
        "flat_prefilled_fifth_tokens": _prefilled(flat),
        "conversations": conversations,
    }


def _own(client: httpx.Client, mol: Mol, number: int) -> list[Answered]:
    session = f"own-{number}"
    talk: list[dict[str, str]] = []
    seen: list[Answered] = []
    for text in _texts("own", number):
        talk.append({"role": "user", "content": text})
        before = mol.recording()["recorded"]
        answer = _ask(client, mol.process.url, "mol", talk, {"X-Session-ID": session})
        talk.append({"role": "assistant", "content": answer.text})
        seen.append(answer)
        # A route, an answer, a summary and the turn itself.
        while mol.recording()["recorded"] < before + 4:
            time.sleep(0.05)
    hops = [json.loads(line)["record"] for line in hop_lines(mol.home)]
    answers = [h for h in hops if h["conversation_id"] == session and h["role"] == "answer"]
    return [
        Answered(a.text, a.ttft_s, hop["prompt_tokens"], hop["cached_tokens"] or 0)
        for a, hop in zip(seen, answers, strict=True)
    ]


def _flat(
    client: httpx.Client, engine_url: str, names: dict[str, str], number: int
) -> list[Answered]:
    profile = load_profile()
    talk: list[dict[str, str]] = []
    seen: list[Answered] = []
    for slot, text in zip(ROUTE, _texts("flat", number), strict=True):
        system = {"role": "system", "content": profile.slot(slot).system}
        talk.append({"role": "user", "content": text})
        seen.append(_ask(client, engine_url, names[slot], [system, *talk], {}))
        talk.append({"role": "assistant", "content": seen[-1].text})
    return seen


def _ask(
    client: httpx.Client, url: str, model: str, talk: list[dict[str, str]], headers: dict[str, str]
) -> Answered:
    body = {
        "model": model, "messages": talk, "max_tokens": MAX_TOKENS, "temperature": 0.0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    usage: dict[str, Any] = {}
    started, ttft_s, said = time.monotonic(), None, ""
    address = url + "/v1/chat/completions"
    with client.stream("POST", address, json=body, headers=headers) as response:
        if not response.is_success:
            raise RuntimeError(f"{url} answered {response.status_code}: {response.read()[:300]!r}")
        for chunk in _chunks(response):
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                if text := choice["delta"].get("content"):
                    ttft_s = ttft_s or time.monotonic() - started
                    said += text
    details = usage.get("prompt_tokens_details") or {}
    return Answered(
        said, ttft_s or 0.0, usage.get("prompt_tokens", 0), details.get("cached_tokens", 0)
    )


def _chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def _texts(arm: str, number: int) -> list[str]:
    """Return a conversation's texts; no two begin alike."""
    texts = []
    for turn, slot in enumerate(ROUTE):
        draw = random.Random(f"{arm} {number} {turn}")
        words = ["".join(draw.choices(_SYLLABLES, k=2)) for _ in range(TEXT_WORDS)]
        texts.append(" ".join([*words, WORDS[slot]]))
    return texts


def _home(home: Path) -> dict[str, str]:
    """Make a home that serves the example adapters, each by a word of its own."""
    entries = []
    for folder in sorted(ADAPTERS.iterdir()):
        digest = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
        shutil.copytree(folder, home / "adapters" / digest)
        entries.append(
            SlotEntry(
                slot=folder.name, champion=f"{folder.name}@{digest[:12]}",
                digest=f"sha256:{digest}", path=f"adapters/{digest}",
                routing_rule=f"!{WORDS[folder.name]}",
            )
        )  # fmt: skip
    put_table(home, SlotFile(slots=tuple(entries)))
    return {entry.slot: entry.champion or "" for entry in entries}


def _hit_rate(conversations: list[list[Answered]]) -> float:
    answers = [answer for answers in conversations for answer in answers]
    prompt = sum(answer.prompt_tokens for answer in answers)
    return round(sum(answer.cached_tokens for answer in answers) / max(1, prompt), 3)


def _fifth_ms(conversations: list[list[Answered]]) -> float:
    return round(1000 * median(answers[-1].ttft_s for answers in conversations), 1)


def _prefilled(conversations: list[list[Answered]]) -> float:
    fifths = [answers[-1] for answers in conversations]
    return median(answer.prompt_tokens - answer.cached_tokens for answer in fifths)
