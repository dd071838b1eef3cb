"""From the lake to one slot's dataset: harvest, filter, split, check, write.

In: a home with an ingested and attributed lake, a slot and a profile. Out: a `Manifest`;
its folder under `datasets/` holds the rows. Run it with `flows run curate --slot L2`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from curation import contract
from curation import manifest as datasets
from curation.config import CurationConfig
from curation.examples import Example, Split
from curation.filters import balance, cap_replay, drop_duplicates, drop_sealed, fits
from curation.harvest import Candidate, Distrust, harvest
from curation.manifest import FunnelStage, Manifest
from curation.reasons import TOO_LONG
from curation.split import Groups
from serving.errors import MolError
from serving.slots import Profile

if TYPE_CHECKING:
    from traces.read import TurnBundle


class NotEnoughExamples(MolError, ValueError):
    """The lake holds too little that is worth training this slot on."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rows of a dataset and how they came to be."""

    examples: tuple[Example, ...]
    """By example id: an order that is stable and carries no meaning."""
    stages: tuple[FunnelStage, ...]


def build(
    home: Path,
    slot: str,
    profile: Profile,
    config: CurationConfig,
    sealed_prompts: frozenset[str] = frozenset(),
    withdrawn: frozenset[str] = frozenset(),
) -> Manifest:
    """Make the dataset of one slot, or return the manifest of the same rows made before.

    Args:
        home: the state folder.
        slot: the slot to train.
        profile: the harness profile; it names the slots and the router.
        config: limits and thresholds.
        sealed_prompts: `curation.examples.prompt_id` of every request of a gate suite.
        withdrawn: versions that were rolled back, by the 12 hex digits that turns bear.

    Raises:
        UnknownSlot: if the profile has no such slot.
        NotEnoughExamples: if too few training rows are left.
        ContractFailed: if the rows break the data contract.
        DiskFull: if the dataset could not be stored.
        LakeNotFound: if nothing was ingested yet.
    """
    profile.slot(slot)
    # Here and not above: DuckDB stays out of import time.
    from traces.read import read_turns

    snapshot_id = _snapshot_id(home)
    turns = read_turns(home, snapshot=snapshot_id)
    chosen = select(turns, slot, profile, config, sealed_prompts, withdrawn)
    return store(home, slot, profile, config, chosen, snapshot_id)


def select(
    bundles: "Iterable[TurnBundle]",
    slot: str,
    profile: Profile,
    config: CurationConfig,
    sealed_prompts: frozenset[str] = frozenset(),
    withdrawn: frozenset[str] = frozenset(),
) -> Chosen:
    """Choose a slot's rows from turns, which may come in any order; candidates stay in memory."""
    found, groups, stages = _harvest_all(bundles, slot, profile, config, withdrawn)
    fitting = [row for row in found if fits(row, config)]
    stages.append(_stage(datasets.SIZE, len(found), {TOO_LONG: len(found) - len(fitting)}))

    sides = groups.sides(config.holdout_percent)
    placed = [_placed(row, sides[row.example.conversation_id]) for row in fitting]
    unique, dropped = drop_duplicates(placed)
    stages.append(_stage(datasets.DUPLICATES, len(placed), dropped))
    unsealed, dropped = drop_sealed(unique, sealed_prompts)
    stages.append(_stage(datasets.GATE_SUITES, len(unique), dropped))
    kept, dropped = balance(unsealed, config) if slot == profile.router else (unsealed, Counter())
    kept, over = cap_replay(kept, config)
    stages.append(_stage(datasets.BALANCE, len(unsealed), dropped + over))

    rows = sorted((row.example for row in kept), key=lambda row: row.example_id)
    return Chosen(tuple(rows), tuple(stages))


def store(
    home: Path,
    slot: str,
    profile: Profile,
    config: CurationConfig,
    chosen: Chosen,
    snapshot_id: int,
) -> Manifest:
    """Check chosen rows and write them, unless the same dataset is there; see `build`."""
    code = code_version()
    digest = datasets.dataset_digest(slot, chosen.examples, config, code)
    known = datasets.find_manifest(home, digest)
    if known is not None:
        return known
    require_enough(slot, profile, config, chosen)
    report = contract.check(chosen.examples, slot, config.min_rows)
    train = [row for row in chosen.examples if row.split == "train"]
    made = Manifest(
        digest=digest,
        slot=slot,
        snapshot_id=snapshot_id,
        config=config,
        code_version=code,
        row_ids=tuple(row.example_id for row in chosen.examples),
        stages=chosen.stages,
        splits={"train": len(train), "holdout": len(chosen.examples) - len(train)},
        mix=dict(sorted(Counter(f"{row.duty}/{row.source}" for row in train).items())),
        contract=report,
    )
    datasets.write_dataset(home, made, chosen.examples)
    return made


def require_enough(slot: str, profile: Profile, config: CurationConfig, chosen: Chosen) -> None:
    """Raise `NotEnoughExamples` if the training rows are too few, or lack a duty of the router."""
    train = Counter(row.duty for row in chosen.examples if row.split == "train")
    if train.total() < config.min_rows:
        raise NotEnoughExamples(
            f"Slot {slot!r} has {train.total()} training rows, and needs {config.min_rows} "
            f"(curation.min_rows). {_reasons(chosen)} Ingest more traces with 'flows run ingest "
            "PATH', or lower min_rows."
        )
    if slot == profile.router and len(train) < 2:
        missing = "answer" if train["route"] else "route"
        raise NotEnoughExamples(
            f"Router slot {slot!r} has {train.total()} training rows and 0 of duty {missing!r}, "
            f"and needs at least 1 of each: trained on one duty it forgets the other. "
            f"{_reasons(chosen)} Ingest more traces with 'flows run ingest PATH'."
        )


def code_version() -> str:
    """Return a digest over the source of this package.

    Over the source and not a number kept by hand, which someone forgets to raise: a comment
    changed costs a rebuilt dataset, a rule changed unnoticed would cost a wrong one.
    """
    total = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return "sha256:" + total.hexdigest()


def _snapshot_id(home: Path) -> int:
    from traces.storage.lake import Lake

    with Lake.open(home, read_only=True) as lake:
        return lake.snapshot_id()


def _harvest_all(
    bundles: "Iterable[TurnBundle]",
    slot: str,
    profile: Profile,
    config: CurationConfig,
    withdrawn: frozenset[str],
) -> tuple[list[Candidate], Groups, list[FunnelStage]]:
    used = []
    distrust = Distrust(withdrawn)
    groups = Groups()
    turns = 0
    unused_turns: Counter[str] = Counter()
    for bundle in bundles:
        turns += 1
        # Every turn takes part in the grouping, so that the split is the same for all slots.
        groups.add(bundle.turn.user, bundle.turn.conversation_id)
        distrust.add(bundle)
        yielded = harvest(bundle, slot, profile, config, withdrawn)
        if yielded.reason is not None:
            unused_turns[yielded.reason] += 1
        else:
            used.append(yielded)
    found: list[Candidate] = []
    left_out: Counter[str] = Counter()
    for yielded in used:
        first = yielded.candidates[0]
        reason = distrust.reason(first.example.conversation_id, first.order[0])
        if reason is not None:
            unused_turns[reason] += 1
            continue
        found.extend(yielded.candidates)
        left_out.update(yielded.dropped_hops)
    completions = len(found) + left_out.total()
    return (
        found,
        groups,
        [
            _stage(datasets.TURNS, turns, unused_turns),
            _stage(datasets.ANSWERS, completions, left_out),
        ],
    )


def _placed(row: Candidate, split: Split) -> Candidate:
    return replace(row, example=row.example.model_copy(update={"split": split}))


def _stage(name: str, entered: int, dropped: dict[str, int]) -> FunnelStage:
    ordered = sorted(((r, n) for r, n in dropped.items() if n), key=lambda item: (-item[1], item))
    return FunnelStage(
        stage=name, entered=entered, kept=entered - sum(dropped.values()), dropped=dict(ordered)
    )


def _reasons(chosen: Chosen) -> str:
    """Say in one sentence what became of the turns."""
    drops = datasets.all_drops(chosen.stages)
    top = ", ".join(f"{n} {reason}" for reason, n in drops.most_common(5)) or "none"
    return f"Of {chosen.stages[0].entered} turns seen, left out: {top}."
