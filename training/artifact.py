"""Adapter artifacts: their digest, the proof that an engine can load them, their publication.

In: a plain PEFT folder (from a training run, or from elsewhere). Out:
`<home>/adapters/<64 hex>/` holding exactly `adapter_config.json`,
`adapter_model.safetensors` and `version.json`. The name is the digest of what the adapter
says and weighs, so a folder never changes. Free of torch: files are read as bytes.
"""

import importlib.metadata
import json
import re
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from serving.disk import new_folder
from serving.errors import AdapterNotServable, MolError
from serving.records import (
    SCHEMA_VERSION,
    SLOT_PATTERN,
    AdapterVersion,
    Record,
    canonical_json,
    content_id,
)
from serving.tensors import folder_tensors, tensors_digest
from training.servable import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    check_servable,
    read_config,
    read_weights,
    refused,
)

VERSION_NAME = "version.json"

_VOLATILE_BASE_KEYS = frozenset(
    {"_name_or_path", "_model_name_or_path", "transformers_version", "dtype", "torch_dtype"}
)
_BASE_KEY = "base_model_name_or_path"
_LIBRARIES = ("torch", "transformers", "peft", "trl")


class WrongBase(AdapterNotServable):
    """The adapter was trained on another base model."""


class AlteredAdapter(AdapterNotServable):
    """The bytes are not those that were published under this digest."""


class BaseNotFound(MolError, FileNotFoundError):
    """A folder holds no base model in safetensors form."""


class Version(Record):
    """`version.json`: which slot's adapter this is and where it came from."""

    schema_version: int = SCHEMA_VERSION
    slot: str
    digest: str
    base_digest: str
    manifest_digest: str | None = None
    """Digest of the dataset it learned from; None for an imported adapter."""
    run_key: str | None = None
    seed: int | None = None
    libraries: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries that trained it."""

    @property
    def adapter(self) -> AdapterVersion:
        """The slot and digest under which it is served."""
        return AdapterVersion(slot=self.slot, digest=self.digest)

    @property
    def name(self) -> str:
        """The name it is served under, `L2@3fa9c1d2e4b5`."""
        return self.adapter.name


def adapter_folder(home: Path, digest: str) -> Path:
    """Return where the adapter with this digest lies or would lie."""
    return home / "adapters" / digest.removeprefix("sha256:")


def adapter_digest(path: Path) -> str:
    """Return the digest of an adapter's canonical content.

    It covers the configuration with sorted keys and modules, and each tensor's name, type,
    shape and bytes; not the order of tensors in the file, what the base is called (a path of
    the machine that trained it), nor `version.json`. So a plain PEFT folder has the digest
    under which it would be published.

    Raises:
        AdapterNotServable: if a file is missing or unreadable.
    """
    config = _canonical_config(read_config(path))
    config.pop(_BASE_KEY, None)
    return content_id({"config": config, "tensors": tensors_digest(read_weights(path))})


def base_digest(base: Path) -> str:
    """Return the digest of a base model: its tensors and its configuration.

    Kept in memory by file sizes and times, as reading half a gigabyte takes a second.

    Raises:
        BaseNotFound: if `base` is not a model folder with safetensors weights.
    """
    files = sorted(base.glob("*.safetensors")) if base.is_dir() else []
    if not files or not (base / "config.json").is_file():
        raise BaseNotFound(
            f"No base model in {str(base)!r}: it must be a Hugging Face folder with config.json "
            "and *.safetensors. Fetch the default one with 'python -m infra.base_model'."
        )
    stamps = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    config = (base / "config.json").read_text()
    return _base_digest(base.resolve(), tuple(stamps), config)


@lru_cache(maxsize=8)
def _base_digest(base: Path, _stamps: tuple[tuple[str, int, int], ...], config: str) -> str:
    settings = {k: v for k, v in json.loads(config).items() if k not in _VOLATILE_BASE_KEYS}
    return content_id({"config": settings, "tensors": tensors_digest(folder_tensors(base))})


def verify_adapter(path: Path, base: Path | None, base_digest: str) -> Version:
    """Check that a published adapter is whole, unaltered, and servable over this base.

    Args:
        path: a folder under `<home>/adapters`.
        base: the base's folder, to check module names and shapes; None skips that.
        base_digest: what the adapter must have been trained on.

    Raises:
        AdapterNotServable: naming the first thing that is wrong.
    """
    check_servable(path, base)
    version = read_version(path)
    if read_config(path).get(_BASE_KEY) != version.base_digest:
        raise AlteredAdapter(
            f"Adapter {version.name!r} names base {read_config(path).get(_BASE_KEY)!r} in "
            f"{CONFIG_NAME} and {version.base_digest!r} in {VERSION_NAME}. Delete the folder "
            f"{str(path)!r} and train or import it again."
        )
    if version.base_digest != base_digest:
        raise WrongBase(
            f"Adapter {version.name!r} was trained on base {version.base_digest!r}, but the base "
            f"here is {base_digest!r}. Train it again on this base with 'flows run train'."
        )
    found = adapter_digest(path)
    if found != version.digest or adapter_folder(path, found).name != path.name:
        raise AlteredAdapter(
            f"Adapter {str(path)!r} has digest {found!r}, but was published as "
            f"{version.digest!r}. Delete the folder and train or import it again."
        )
    return version


def publish(
    home: Path,
    folder: Path,
    slot: str,
    base: Path,
    *,
    manifest_digest: str | None = None,
    run_key: str | None = None,
    seed: int | None = None,
    libraries: Mapping[str, str] | None = None,
) -> Version:
    """Copy a PEFT folder's configuration and weights, and nothing else, into `<home>/adapters`.

    The base is written as its digest instead of a path on this machine. Publishing the same
    content again changes nothing and returns what is there.

    Raises:
        AdapterNotServable: if an engine could not load it; nothing is written.
    """
    if not re.match(SLOT_PATTERN, slot):
        raise AdapterNotServable(f"Slot name {slot!r} must match {SLOT_PATTERN}.")
    check_servable(folder, base)
    base_id = base_digest(base)
    config = _canonical_config(read_config(folder)) | {_BASE_KEY: base_id}
    digest = adapter_digest(folder)
    version = Version(
        slot=slot,
        digest=digest,
        base_digest=base_id,
        manifest_digest=manifest_digest,
        run_key=run_key,
        seed=seed,
        libraries=dict(libraries or {}),
    )
    final = adapter_folder(home, digest)
    _clear_way(final, version, base)
    with new_folder(final) as new:
        shutil.copyfile(folder / WEIGHTS_NAME, new / WEIGHTS_NAME)
        (new / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (new / VERSION_NAME).write_text(version.model_dump_json(indent=2) + "\n")
        for file in new.iterdir():
            file.chmod(0o644)
        new.chmod(0o755)
    return verify_adapter(final, base, base_id)


def _clear_way(final: Path, version: Version, base: Path) -> None:
    """Remove a damaged folder that stands under this name; refuse one of another slot."""
    if not final.exists():
        return
    try:
        there = verify_adapter(final, base, version.base_digest)
    except WrongBase:
        raise
    except AdapterNotServable:
        shutil.rmtree(final)
        return
    if there.slot != version.slot:
        raise AdapterNotServable(
            f"This adapter is published as {there.name!r} already and cannot be slot "
            f"{version.slot!r} too: one adapter belongs to one slot. Use another adapter."
        )


def import_adapter(home: Path, folder: Path, slot: str, base: Path) -> Version:
    """Publish an adapter that was trained elsewhere; a second import finds the first.

    Raises:
        AdapterNotServable: if an engine could not load it; nothing is written.
    """
    config = read_config(folder) if folder.is_dir() else {}
    trained_on = str(config.get(_BASE_KEY) or "")
    if trained_on.startswith("sha256:") and trained_on != base_digest(base):
        raise WrongBase(
            f"Adapter {str(folder)!r} was trained on base {trained_on!r}, but the base "
            f"{str(base)!r} is {base_digest(base)!r}. Use the base it was trained on."
        )
    return publish(home, folder, slot, base)


def read_version(path: Path) -> Version:
    """Read an adapter folder's `version.json`.

    Raises:
        AdapterNotServable: if it is missing or not such a file.
    """
    try:
        return Version.model_validate_json((path / VERSION_NAME).read_bytes())
    except FileNotFoundError as error:
        raise refused(path, f"{VERSION_NAME} is missing, so nothing says what it is") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"]) or "the file"
        raise refused(path, f"{VERSION_NAME}: {place}: {first['msg']}") from error


def list_adapters(home: Path) -> list[Version]:
    """Return the published adapters, ordered by slot and digest; unfinished folders are not."""
    folders = (home / "adapters").glob("[0-9a-f]*/")
    versions = [read_version(f) for f in folders if re.fullmatch(r"[0-9a-f]{64}", f.name)]
    return sorted(versions, key=lambda v: (v.slot, v.digest))


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide what training produces."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _canonical_config(config: dict[str, Any]) -> dict[str, Any]:
    """PEFT writes `target_modules` from a set, in another order each time."""
    canonical = {k: v for k, v in config.items() if k not in ("peft_version", "auto_mapping")}
    for key in ("target_modules", "exclude_modules"):
        if isinstance(canonical.get(key), list):
            canonical[key] = sorted(canonical[key])
    result: dict[str, Any] = json.loads(canonical_json(canonical))
    return result
