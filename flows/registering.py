"""Enter in the registry what was trained or imported, signed by the home's key."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import Settings

if TYPE_CHECKING:
    from promotion.registry import Registry
    from promotion.state import RegisteredVersion


def register_adapter(
    settings: Settings, registry: "Registry", digest: str, metrics: dict[str, Any]
) -> None:
    """Sign a published adapter and enter it; a second time changes nothing.

    Raises:
        UnknownSigner: if the registry knows other keys than this home's.
    """
    from promotion.state import RegisteredVersion
    from training.artifact import adapter_folder, read_version

    version = read_version(adapter_folder(settings.home, digest))
    register(
        settings,
        registry,
        RegisteredVersion(
            slot=version.slot,
            digest=version.digest,
            base_digest=version.base_digest,
            manifest_digest=version.manifest_digest,
            run_key=version.run_key,
            metrics=metrics,
            path=str(adapter_folder(Path(), version.digest)),
            created_at=datetime.now(UTC),
        ),
    )


def register(settings: Settings, registry: "Registry", version: "RegisteredVersion") -> None:
    """Sign a version's folder, once its content is checked, and enter it; again changes nothing.

    Raises:
        AdapterNotServable, HeadInvalid: if the folder is not what its digest says.
    """
    from promotion.signing import register_signed

    def verify(path: Path) -> None:
        check_content(path, version)

    register_signed(registry, settings.home, version, settings.registry.key, verify)


def check_content(path: Path, version: "RegisteredVersion") -> None:
    """Raise unless a folder's content has the version's digest."""
    from serving.head import HEAD_SLOT, RouterHead
    from training.artifact import verify_adapter

    if version.slot == HEAD_SLOT:
        RouterHead.load(path, version.digest)
    else:
        verify_adapter(path, None, version.base_digest)
