"""Datasets on disk: the manifest, the rows, and how to find them again.

A dataset is a folder `datasets/<12 hex digits>` of the home with `examples.parquet` and
`manifest.json`. It holds neither time nor place, so that equal inputs give equal bytes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from curation.config import CurationConfig
from curation.examples import Example, Split
from serving.disk import new_folder
from serving.errors import MolError
from serving.records import Record, canonical_json, content_id, short_digest

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
FOLDER = "datasets"
MANIFEST_FILE = "manifest.json"
ROWS_FILE = "examples.parquet"

TURNS = "turns"
ANSWERS = "completions of used turns"
SIZE = "size"
DUPLICATES = "duplicates"
GATE_SUITES = "gate suites"
BALANCE = "balance"

_JSON_COLUMNS = ("messages", "completion")


class DatasetNotFound(MolError, LookupError):
    """No dataset has this digest."""


class DatasetDamaged(MolError, ValueError):
    """A dataset's files are not what its manifest says."""


class FunnelStage(Record):
    """What went into a stage and what came out; `entered` is `kept` plus all of `dropped`."""

    stage: str
    entered: int
    kept: int
    dropped: dict[str, int]
    """Reason to count, the largest first."""


class Manifest(Record):
    """The content-addressed description of one dataset."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    """`sha256:<64 hex>` over slot, rows, configuration and code version.

    The snapshot is not part of it: a lake that grew without changing this slot's rows gives
    the same dataset, under the manifest first written."""
    slot: str
    snapshot_id: int
    """Snapshot of the lake that was read."""
    config: CurationConfig
    code_version: str
    """Digest of the source of this package."""
    row_ids: tuple[str, ...]
    """Ids of the rows, in file order."""
    stages: tuple[FunnelStage, ...]
    splits: dict[str, int]
    """Rows by split."""
    mix: dict[str, int]
    """Training rows by `<duty>/<source>`."""
    contract: list[dict[str, Any]]
    """Report of the data contract."""

    @property
    def path(self) -> Path:
        """The dataset's folder, relative to the home."""
        return Path(FOLDER) / short_digest(self.digest)

    @property
    def rows_path(self) -> Path:
        """The file of rows, relative to the home."""
        return self.path / ROWS_FILE

    @property
    def drops(self) -> dict[str, int]:
        """Reason to count over all stages."""
        return dict(all_drops(self.stages))

    @property
    def counts(self) -> dict[str, int]:
        """What is left after each stage, from turns seen to the rows of each split."""
        kept = {stage.stage: stage.kept for stage in self.stages}
        return {
            "turns_seen": self.stages[0].entered,
            "turns_used": kept[TURNS],
            "candidates": kept[ANSWERS],
            "after_size": kept[SIZE],
            "after_dedup": kept[DUPLICATES],
            "after_decontamination": kept[GATE_SUITES],
            "after_balance": kept[BALANCE],
            **self.splits,
        }

    def funnel(self) -> list[tuple[str, int, int, dict[str, int]]]:
        """Return (stage, in, kept, dropped by reason) in order.

        The first stage counts turns, the later ones rows: a turn has one row or several.
        """
        return [(s.stage, s.entered, s.kept, dict(s.dropped)) for s in self.stages]


def all_drops(stages: Iterable[FunnelStage]) -> Counter[str]:
    """Add up the drops of all stages; a reason can occur in more than one."""
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(stage.dropped)
    return total


def write_dataset(home: Path, manifest: Manifest, rows: Sequence[Example]) -> None:
    """Write the rows and then the manifest; both are there afterwards, or neither.

    Raises:
        DiskFull: if the bytes could not be stored.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([_to_columns(row) for row in rows], schema=_schema())
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, ensure_ascii=False)
    with new_folder(home / manifest.path) as folder:
        pq.write_table(table, folder / ROWS_FILE, compression="zstd")
        (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def find_manifest(home: Path, digest: str) -> Manifest | None:
    """Return the manifest of exactly this digest, None if there is no such dataset.

    Raises:
        DatasetDamaged: if its folder is there and its manifest is missing or unreadable.
    """
    folder = home / FOLDER / short_digest(digest)
    return _read_manifest(folder) if folder.exists() else None


def load_manifest(home: Path, digest: str) -> Manifest:
    """Return the manifest whose digest starts with `digest`, with or without `sha256:`.

    Raises:
        DatasetNotFound: if none or several do.
        DatasetDamaged: if its file cannot be read.
    """
    folders = _folders(home)
    prefix = digest.removeprefix("sha256:")
    matches = [f for f in folders if prefix and f.name.startswith(prefix[:12])]
    found = [m for m in map(_read_manifest, matches) if m.digest[7:].startswith(prefix)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(repr(f.name) for f in folders) or "none"
    problem = f"{len(found)} datasets match" if found else "No dataset matches"
    raise DatasetNotFound(
        f"{problem} {digest!r} (there are: {names}). Run 'flows datasets list', or make one with "
        "'flows run curate'."
    )


def list_manifests(home: Path) -> list[Manifest]:
    """Return all datasets' manifests, by slot, then snapshot."""
    found = map(_read_manifest, _folders(home))
    return sorted(found, key=lambda m: (m.slot, m.snapshot_id, m.digest))


def read_examples(home: Path, manifest: Manifest, split: Split | None = "train") -> list[Example]:
    """Return a dataset's rows of one split (None: all) in file order.

    Raises:
        DatasetDamaged: if the rows are not those of the manifest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = home / manifest.rows_path
    try:
        rows = [_from_columns(raw) for raw in pq.read_table(file).to_pylist()]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(file.parent, f"{ROWS_FILE} cannot be read") from error
    if [row.computed_id for row in rows] != list(manifest.row_ids):
        raise _damaged(file.parent, f"the rows of {ROWS_FILE} are not those of its manifest")
    return [row for row in rows if split is None or row.split == split]


def dataset_digest(
    slot: str, rows: Iterable[Example], config: CurationConfig, code_version: str
) -> str:
    """Return the content id of a dataset."""
    ids = [content_id(row.model_dump(mode="json")) for row in rows]
    return content_id(
        {"slot": slot, "rows": ids, "config": config.model_dump(), "code_version": code_version}
    )


def _folders(home: Path) -> list[Path]:
    # Names with a dot are folders still being written, or left by a killed run.
    found = (home / FOLDER).glob("[!.]*") if (home / FOLDER).is_dir() else ()
    return sorted(folder for folder in found if folder.is_dir())


def _read_manifest(folder: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except OSError as error:
        raise _damaged(folder, f"its {MANIFEST_FILE} cannot be read") from error
    except ValidationError as error:
        raise _damaged(folder, f"its {MANIFEST_FILE} is not a manifest of this version") from error


def _damaged(folder: Path, problem: str) -> DatasetDamaged:
    return DatasetDamaged(
        f"Dataset {folder.name!r} is damaged: {problem}. Remove the folder {str(folder)!r} and "
        "make it again with 'flows run curate'."
    )


def _schema() -> "pa.Schema":
    import pyarrow as pa

    types = {"schema_version": pa.int32(), "weight": pa.float64()}
    return pa.schema([(name, types.get(name, pa.string())) for name in Example.model_fields])


def _to_columns(row: Example) -> dict[str, Any]:
    # Messages are JSON text: Arrow structs would put null keys into tool calls.
    raw = row.model_dump(mode="json")
    return raw | {name: canonical_json(raw[name]) for name in _JSON_COLUMNS}


def _from_columns(raw: dict[str, Any]) -> Example:
    return Example.model_validate(raw | {name: json.loads(raw[name]) for name in _JSON_COLUMNS})
