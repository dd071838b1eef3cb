"""A slot with a canary, and traffic over both versions as the recorder writes it.

The registry, its log, the artifacts' signatures and the lake are real; adapters are folders with
one file, and conversations are records as a gateway makes them. The registry dates its events
itself, so they are dated from now on, two milliseconds apart, and are over when they are ingested.
Which version answers is drawn as serving does it.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from registry_records import BASE_DIGEST, attempted, report_between
from trace_records import PROFILE, calls, hop, says, signal, turn_of, user, write_spool

from promotion.gate import GateReport, save_report
from promotion.promote import begin_canary, bootstrap, export_slots
from promotion.registry import Registry
from promotion.signing import register_signed
from promotion.state import RegisteredVersion
from serving.leases import share
from serving.records import short_digest
from traces.attribute import attribute
from traces.ingest import ingest

SLOT = "L2"
QUIET_S = 0.02
APART_S = 0.002


def digest(number: int) -> str:
    return f"sha256:{number:012x}" + "f" * 52


def name(number: int) -> str:
    return f"{SLOT}@{short_digest(digest(number))}"


def whole(_path: Path) -> None:
    """Stands in for training's own check of an artifact."""


def verify_of(_slot: str, _digest: str) -> Callable[[Path], None]:
    return whole


def report_of(champion: int | None, challenger: int, gains: int = 40, seed: int = 0) -> GateReport:
    """A report of 60 items, of which the challenger won some and lost none."""
    before = None if champion is None else digest(champion)
    return report_between(before, digest(challenger), gains=gains, slot=SLOT, seed=seed)


def make_home(home: Path, versions: int = 3) -> Path:
    """L2 serves version 1 and knows some more."""
    with Registry.open(home, ("L0", "L1", SLOT)) as registry:
        for number in range(1, versions + 1):
            version = RegisteredVersion(
                slot=SLOT,
                digest=digest(number),
                base_digest=BASE_DIGEST,
                path=f"adapters/{digest(number).removeprefix('sha256:')}",
                created_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
            (home / version.path).mkdir(parents=True)
            (home / version.path / "adapter_model.safetensors").write_bytes(b"%d" % number)
            register_signed(registry, home, version)
        bootstrap(home, registry, SLOT, digest(1))
        export_slots(home, registry)
    return home


def start_canary(home: Path, challenger: int = 2, percent: float = 50) -> GateReport:
    """Give a version that passed the gate against version 1 a part of the traffic."""
    report = report_of(1, challenger)
    save_report(home, attempted(home, report))
    begin_canary(home, report, percent, verify=whole)
    return report


def conversation(
    key: str, served: str, when: datetime, fails: bool, canary: bool, **fields: Any
) -> list[Any]:
    """One conversation of one turn, judged by a verifier at once.

    `fields` are the hop's.
    """
    slot = served.split("@")[0]
    shared = {"conversation_id": key, "turn_id": f"t-{key}"}
    values = {
        "served_name": served,
        "model": served,
        "started_at": when,
        "duration_s": 0.5,
        "response_id": f"r-{key}",
        "messages": (user(f"Do {key}."),),
        "canary": canary,
    }
    made = hop(slot=slot, **(values | shared | fields))
    turn = turn_of(
        [made], request=f"Do {key}.", canary=canary, user=None, duration_s=APART_S, **shared
    )
    word = signal(
        value=0.0 if fails else 1.0,
        target_id=shared["turn_id"],
        created_at=when + timedelta(seconds=APART_S),
    )
    return [made, turn, word]


def traffic(
    mark: str,
    count: int,
    rates: dict[str, float],
    percent: float,
    champion: int = 1,
    canary: int = 2,
    seed: int = 1,
    **fields: Any,
) -> list[Any]:
    """Conversations from now on, and a last one that tells that they have ended.

    `rates` are the failure rates of "champion" and "canary"; `fields` are the canary's hops'.
    """
    rng, begin = random.Random(seed), datetime.now(UTC)
    records: list[Any] = []
    for n in range(count):
        key = f"{mark}-{n}"
        trial = share(SLOT, key) < percent
        arm, served = ("canary", name(canary)) if trial else ("champion", name(champion))
        when = begin + timedelta(seconds=n * APART_S)
        extra = fields if trial else {}
        records += conversation(key, served, when, rng.random() < rates[arm], trial, **extra)
    last = begin + timedelta(seconds=count * APART_S + 2 * QUIET_S)
    return records + conversation(f"{mark}-last", name(champion), last, False, False)


def settle(home: Path, records: list[Any], file: str) -> None:
    """Bring records into the lake, once they are over, and settle what came of them."""
    over = max(record.started_at for record in records if hasattr(record, "started_at"))
    time.sleep(max(0.0, (over - datetime.now(UTC)).total_seconds()) + APART_S)
    ingest(home, write_spool(home.parent / f"{file}.jsonl", records))
    attribute(home, PROFILE)


__all__ = ["calls", "says"]
