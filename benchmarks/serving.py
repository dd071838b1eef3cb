"""The MoL server beside its rivals, on an engine that answers at once and on the real vLLM.

    python -m benchmarks.serving [--quick] [--litellm BIN] [--harness FOLDER] [--vllm]

Added latency, requests a second and processor time a request at 1, 32 and 256 clients, of a
hop passed through and of full turns, recording on. The engine asked directly, LiteLLM's proxy
and Mind Lab's harness stand beside them in the same rounds. Then ten changes of all versions
under load, and with `--vllm` the prefix cache under own views and under a flat history.

The last line is one JSON object; what was not measured is null. `overhead_*` is at one
client, where nobody queues; `rps` and `vs_*` are at 32. `--quick` ends within a minute and
leaves out what is not named. Status 1 means that a request failed, a hop is neither recorded
nor counted as dropped, or a turn had two versions.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks import serving_prefix, serving_rounds, serving_swaps, serving_targets
from benchmarks.serving_load import MARK
from benchmarks.serving_rounds import Samples, Target, compare
from benchmarks.serving_stub import ANSWER
from benchmarks.serving_targets import HARNESS_MODEL, SLOT, Mol, Process
from infra.base_model import say_on_stderr
from traces.storage.connections import interrupt_on_signals

RPS_CLIENTS = 32
"""At so many the requests a second are compared."""
SWAP_CLIENTS = 16
SWAP_LIMIT_S = 300.0
"""The load ends with the last change; this is for when it does not come."""
TURNS = 4
"""Of a conversation, each sent with all before it."""
EXPECTED = ANSWER[:9]
HOP_HEADERS = {"X-SMG-Routing-Key": MARK, "User-Agent": "benchmark"}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all that was asked for and return what was measured."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mol-serving-")))
        engine = stack.enter_context(serving_targets.engine(folder))
        mol = stack.enter_context(serving_targets.mol(folder, engine.url))
        targets = [
            Target("engine", engine, hops(), HOP_HEADERS, EXPECTED),
            Target("hop", mol.process, hops(), HOP_HEADERS, EXPECTED),
            Target("turn", mol.process, turns("mol"), {}, EXPECTED),
        ]
        if given.litellm:
            rival = stack.enter_context(serving_targets.litellm(folder, engine.url, given.litellm))
            targets.append(Target("litellm", rival, hops(), HOP_HEADERS, EXPECTED))
        if given.harness:
            rival = stack.enter_context(serving_targets.harness(folder, engine.url, given.harness))
            targets.append(Target("harness", rival, turns(HARNESS_MODEL), {}, EXPECTED))
        samples = serving_rounds.take(targets, given.rounds, given.seconds, given.warm)
        say_on_stderr(f"Changing all versions {given.swaps} times under load ...")
        loads = [t.load(SWAP_CLIENTS, SWAP_LIMIT_S, 0.0) for t in targets[1:3]]
        swaps = serving_swaps.measure(mol, loads, given.swaps)
        turns_taken = serving_rounds.answered(samples, "turn") + swaps.pop("swap_answered")[1]
        report = _compared(samples) | swaps | recorded(engine, mol, turns_taken)
    report |= {"prefix_hit_rate": None}
    if given.vllm:
        report |= serving_prefix.measure(given.conversations)
    return report


def hops() -> tuple[str, ...]:
    """Return the request of one hop, as a proxy above would send it."""
    talk = [
        {"role": "system", "content": "You write and repair code. " * 12},
        {"role": "user", "content": "Here is the log of the failing build. " * 8},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": f"Run {MARK}: it still fails. What now?"},
    ]
    return (json.dumps({"model": SLOT, "messages": talk, "max_tokens": 256, "temperature": 0.0}),)


def turns(model: str) -> tuple[str, ...]:
    """Return a conversation's requests, each with the whole history, as a client sends them."""
    made: list[str] = []
    talk: list[dict[str, str]] = []
    for number in range(TURNS):
        said = f"Conversation {MARK}, question {number}: why does my build fail? " * 3
        talk.append({"role": "user", "content": said})
        made.append(json.dumps({"model": model, "messages": talk, "max_tokens": 256}))
        talk.append({"role": "assistant", "content": ANSWER})
    return tuple(made)


def recorded(engine: Process, mol: Mol, turns_taken: int) -> dict[str, Any]:
    """Return what became of the records, against the calls that the engine counted itself.

    A hop is one call of the engine under a version's name; a full turn leaves one record more.
    """
    said = mol.recording()
    chats: dict[str, int] = httpx.get(engine.url + "/counts").json()["chats"]
    made = sum(number for name, number in chats.items() if "@" in name)
    on_disk = sum(1 for _ in serving_swaps.hop_lines(mol.home))
    dropped = sum(said["dropped"].values())
    return {
        "recorded": said["recorded"],
        "dropped": dropped,
        "hops_made": made,
        "hops_on_disk": on_disk,
        "unaccounted": made + turns_taken - said["recorded"] - dropped,
    }


def _compared(samples: Samples) -> dict[str, Any]:
    def added(name: str, clients: int) -> dict[str, Any] | None:
        p50 = compare(
            samples, clients, name, "engine", lambda a, b: a.measured.p50_ms - b.measured.p50_ms
        )
        p99 = compare(
            samples, clients, name, "engine", lambda a, b: a.measured.p99_ms - b.measured.p99_ms
        )
        return None if p50 is None else {"p50_ms": p50, "p99_ms": p99}

    def rates(one: str, other: str, of: Any) -> dict[str, Any] | None:
        made = {str(n): compare(samples, n, one, other, of) for n in serving_rounds.CLIENTS}
        return None if made[str(RPS_CLIENTS)] is None else made

    table = serving_rounds.by_clients(samples)
    litellm = rates("hop", "litellm", serving_rounds.rps_ratio)
    harness = rates("turn", "harness", serving_rounds.rps_ratio)
    overhead = {str(n): added("hop", n) for n in serving_rounds.CLIENTS}
    first = overhead["1"]
    assert first is not None
    return {
        "overhead_p50_ms": first["p50_ms"]["median"],
        "overhead_p99_ms": first["p99_ms"]["median"],
        "rps": table[str(RPS_CLIENTS)]["hop"]["rps"],
        "vs_litellm": litellm[str(RPS_CLIENTS)]["median"] if litellm else None,
        "vs_harness": harness[str(RPS_CLIENTS)]["median"] if harness else None,
        "overhead": overhead,
        "litellm_overhead": {str(n): added("litellm", n) for n in serving_rounds.CLIENTS},
        "vs_litellm_rps": litellm,
        "vs_litellm_cpu": rates("hop", "litellm", serving_rounds.cpu_ratio),
        "vs_harness_rps": harness,
        "vs_harness_cpu": rates("turn", "harness", serving_rounds.cpu_ratio),
        "by_clients": table,
        "others_busy": serving_rounds.others(samples),
        "failed_requests": serving_rounds.failed(samples),
    }


def is_sound(report: dict[str, Any]) -> bool:
    """Say whether nothing went wrong that must not, however fast or slow it was."""
    never = (
        "failed_requests", "unaccounted", "swap_failed_requests", "swap_failed_hops",
        "swap_turns_of_two_versions",
    )  # fmt: skip
    lost = report["hops_made"] - report["hops_on_disk"] - report["dropped"]
    measured = report["swap_under_load_to_the_end"] and lost <= 0
    return measured and not any(report[name] for name in never)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="less of everything; a minute")
    parser.add_argument("--litellm", type=Path, help="bin folder of an environment that has it")
    parser.add_argument("--no-litellm", action="store_true", help="do not measure it")
    parser.add_argument("--harness", type=Path, help="checkout of Mind Lab's harness")
    parser.add_argument("--vllm", action="store_true", help="prefix cache on the real vLLM")
    parser.add_argument("--rounds", type=int, help="how often all are measured")
    parser.add_argument("--seconds", type=float, help="how long each is measured a round")
    parser.add_argument("--swaps", type=int, default=10, help="changes of all versions under load")
    parser.add_argument("--conversations", type=int, default=4, help="for --vllm, of each kind")
    given = parser.parse_args(words)
    given.rounds = given.rounds or (2 if given.quick else 5)
    given.seconds = given.seconds or (0.7 if given.quick else 2.0)
    given.warm = min(0.5, given.seconds / 2)
    return given


def main() -> int:
    """Measure and print."""
    interrupt_on_signals()
    given = parse()
    if given.litellm is None and not (given.quick or given.no_litellm):
        given.litellm = serving_targets.install_litellm()
    report = measure(given)
    print(json.dumps(report))
    return 0 if is_sound(report) else 1


if __name__ == "__main__":
    sys.exit(main())
