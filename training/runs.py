"""Training runs on disk: what a run is named by, and how to find its result again.

A run is a folder `runs/<16 hex digits>` of the home with the resolved `config.json` and,
when complete, `train.json`. The name is a hash of everything that decides the weights, so
asking for the same run again finds it. Free of torch.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from serving.disk import write_atomic
from serving.errors import AdapterNotServable
from serving.records import SCHEMA_VERSION, AdapterVersion, Record, content_id, short_digest
from training.artifact import (
    adapter_folder,
    base_digest,
    library_versions,
    verify_adapter,
)
from training.config import TrainConfig

if TYPE_CHECKING:
    from curation.manifest import Manifest

FOLDER = "runs"
CONFIG_FILE = "config.json"
RESULT_FILE = "train.json"


class TrainedAdapter(Record):
    """`train.json`: what a run made, written last."""

    schema_version: int = SCHEMA_VERSION
    slot: str
    digest: str
    run_key: str
    base_digest: str
    manifest_digest: str
    seed: int
    metrics: dict[str, float]
    """`train_loss`, `rows`, `supervised_tokens`, `trainable_parameters`, `steps`, `seconds`;
    `tokens` of all rows and epochs, and `computed_tokens`, what is left of them after prompts
    in common were computed once."""
    drops: dict[str, int]
    """Rows of the dataset that could not be learnt, by reason."""

    @property
    def path(self) -> Path:
        """The adapter's folder, relative to the home."""
        return adapter_folder(Path(), self.digest)

    @property
    def adapter(self) -> AdapterVersion:
        """The slot and digest under which it is served."""
        return AdapterVersion(slot=self.slot, digest=self.digest)


def run_key(
    manifest: "Manifest", base: Path, config: TrainConfig, chat_template: str | None = None
) -> str:
    """Return the content id of everything that decides the weights of a run."""
    return content_id(
        {
            "manifest": manifest.digest,
            "slot": manifest.slot,
            "base": base_digest(base),
            "tokenizer": _tokenizer_digest(base, chat_template),
            "config": config.model_dump(),
            "code": code_version(),
            "libraries": library_versions(),
        }
    )


def code_version() -> str:
    """Return a digest over the source that decides the weights: this package and the template.

    Over the source and not a number kept by hand, which someone forgets to raise.
    """
    package = Path(__file__).parent
    total = hashlib.sha256()
    for file in [*sorted(package.glob("*.py")), package.parent / "serving" / "template.py"]:
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return "sha256:" + total.hexdigest()


def run_folder(home: Path, key: str) -> Path:
    """Return the folder of a run."""
    return home / FOLDER / short_digest(key)


def find_run(home: Path, key: str, base: Path) -> TrainedAdapter | None:
    """Return a complete run whose adapter is whole, None if it has to be run (again)."""
    try:
        result = TrainedAdapter.model_validate_json(
            (run_folder(home, key) / RESULT_FILE).read_bytes()
        )
    except (FileNotFoundError, ValidationError):
        return None
    if result.run_key != key:
        return None
    try:
        verify_adapter(home / result.path, base, result.base_digest)
    except AdapterNotServable:
        return None
    return result


def list_runs(home: Path) -> list[TrainedAdapter]:
    """Return the complete runs, by slot, then key; a run that was killed is not among them."""
    found: list[TrainedAdapter] = []
    for file in (home / FOLDER).glob(f"*/{RESULT_FILE}"):
        try:
            found.append(TrainedAdapter.model_validate_json(file.read_bytes()))
        except ValidationError:
            # Written by another version of this package: `train` runs it anew when asked.
            continue
    return sorted(found, key=lambda r: (r.slot, r.run_key))


def write_result(home: Path, result: TrainedAdapter) -> None:
    """Write `train.json`, which makes the run complete."""
    text = json.dumps(result.model_dump(mode="json"), indent=1)
    write_atomic(run_folder(home, result.run_key) / RESULT_FILE, text.encode() + b"\n")


def write_config(home: Path, key: str, config: TrainConfig) -> None:
    """Write the resolved configuration beside the run's outputs."""
    text = json.dumps(config.model_dump(mode="json"), indent=1)
    write_atomic(run_folder(home, key) / CONFIG_FILE, text.encode() + b"\n")


def _tokenizer_digest(base: Path, chat_template: str | None) -> str:
    files = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    if chat_template is None:
        files |= {"chat_template.jinja"}
    found = {
        name: hashlib.sha256((base / name).read_bytes()).hexdigest()
        for name in sorted(files)
        if (base / name).is_file()
    }
    return content_id({"files": found, "template": chat_template})
