"""The loop from recorded traffic to a judged adapter, measured on this machine.

    python -m benchmarks.loop [--seed N] [--quick] [--shuffle]

Runs the real cycle (Prefect, lake, curation, TRL, gate, registry) over the bundled traces
in an empty home and prints one JSON object last: seconds of each stage, the primary
suite's score before and after on held-out requests, n, verdict and seed. `--quick` takes
one day of traffic, small suites and short answers: it shows that the loop runs and what
takes the time, not what it can learn. `--shuffle` is the negative control: feedback is dealt
out among turns at random first, so that there is nothing true to learn.
"""

import argparse
import gzip
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

from flows import console, manual
from flows.config import Settings, load_settings
from serving.slots import DEFAULT_PROFILE
from traces.storage.connections import interrupt_on_signals

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "infra" / "configs" / "bundled.toml"
QUICK: dict[str, Any] = {
    "suites": {"primary": 8, "guard": 2, "bystander": 1, "safety": 0, "format": 0, "living": 0},
    "gate": {"margins": {"skill": 0.2, "handover": 0.2}, "min_items": 8, "latency_items": 0},
    "curation": {"min_rows": 4},
    "policy": {"min_blamed": 4},
    "training": {"epochs": 1, "learning_rate": 6e-4},
}


def measure(seed: int, quick: bool, shuffle: bool) -> dict[str, Any]:
    """Run one cycle in a temporary home and return what was measured."""
    console.Mode.json = True
    settings = load_settings(CONFIG, overrides={"seed": seed})
    with tempfile.TemporaryDirectory(prefix="mol-loop-") as folder:
        folders = [Path(source) for source in settings.sources]
        sources = [file for folder in folders for file in sorted(folder.glob("*.gz"))]
        if quick:
            sources = sources[:1]
        traces = Path(folder, "traces")
        traces.mkdir()
        for name, text in read_spool(sources, seed if shuffle else None).items():
            (traces / name).write_bytes(gzip.compress(text.encode(), mtime=0))
        raw = settings.model_dump() | {"home": Path(folder, "home"), "sources": (traces,)}
        raw |= {"seed": seed}
        if quick:
            raw |= QUICK | {"profile": short_profile(Path(folder))}
        result = manual.run(Settings.model_validate(raw), "cycle").value
    names = ("cycle_s", "heldout_before", "heldout_after", "n", "verdict", "promoted", "slot")
    return {
        **{name: result[name] for name in names},
        "total_s": round(sum(result["cycle_s"].values()), 2),
        "seed": seed,
        "quick": quick,
        "shuffled": shuffle,
    }


def short_profile(folder: Path) -> Path:
    """Write the default profile with less room for answers and return its path."""
    text = DEFAULT_PROFILE.read_text()
    text = re.sub(r"max_answer_tokens = \d+", "max_answer_tokens = 40", text)
    text = re.sub(r"max_summary_tokens = \d+", "max_summary_tokens = 16", text)
    path = folder / "profile.toml"
    path.write_text(text)
    return path


def read_spool(files: list[Path], shuffle_seed: int | None = None) -> dict[str, str]:
    """Return the spool's text by file name.

    With a seed, all feedback changes hands: every verdict and every correction is about a
    turn drawn at random. There is as much of it as before, and nothing true in it.
    """
    lines = {
        file.name: [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
        for file in files
    }
    if shuffle_seed is not None:
        signals = [
            row["record"] for rows in lines.values() for row in rows if row["kind"] == "feedback"
        ]
        targets = [(signal["target_kind"], signal["target_id"]) for signal in signals]
        random.Random(shuffle_seed).shuffle(targets)
        for signal, (kind, target) in zip(signals, targets, strict=True):
            signal |= {"target_kind": kind, "target_id": target}
    return {
        name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for name, rows in lines.items()
    }


def main() -> None:
    """Measure and print."""
    interrupt_on_signals()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of training and suites")
    parser.add_argument("--quick", action="store_true", help="less of everything; a minute")
    parser.add_argument("--shuffle", action="store_true", help="negative control")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.seed, arguments.quick, arguments.shuffle)))


if __name__ == "__main__":
    main()
