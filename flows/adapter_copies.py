"""Copies of versions for others: `flows adapters export` and `flows adapters mirror`.

In: the settings and names. Out: what was written, ready for a table or JSON.
"""

from pathlib import Path
from typing import Any

from flows import stages
from flows.adapters import version_named
from flows.config import Settings
from flows.console import say
from serving.errors import MolError


class NoMirror(MolError, ValueError):
    """No MLflow registry is named."""


def export(
    settings: Settings, which: str, folder: Path, base_model: str | None, licence: str | None
) -> dict[str, Any]:
    """Write a version's folder in the Hugging Face layout, after checking its signature.

    Raises:
        ExportRefused: if there is something in its place, or it is no LoRA adapter.
        SignatureRefused: if it is unsigned, or altered since it was signed.
    """
    from curation.manifest import find_manifest
    from flows.reports import founded_reports
    from promotion.hub_export import export_version
    from promotion.promote import check_artifact
    from promotion.signing import signing_key

    with stages.open_registry(settings) as registry:
        version = version_named(settings, registry, which)
        check_artifact(settings.home, registry, version)
        key = signing_key(settings.home, settings.registry.key)
        registry.signers.admit(key.public_key)
    digest = version.manifest_digest
    reports = founded_reports(settings, version.slot, version.digest)
    return export_version(
        settings.home,
        version,
        folder,
        base_model=base_model or settings.base.resolve().name,
        key=key,
        licence=licence,
        manifest=find_manifest(settings.home, digest) if digest else None,
        report=reports[-1] if reports else None,
    ).model_dump()


def mirror(settings: Settings, uri: str | None = None) -> list[dict[str, Any]]:
    """Bring an MLflow registry up to date, the configured one if none is named; return its rows.

    Raises:
        NoMirror: if none is named or configured.
        MirrorUnavailable: if it cannot be reached; the registry here is as it was.
    """
    from promotion.mirror import mirror

    wanted = uri or settings.registry.mirror
    if wanted is None:
        raise NoMirror(
            "No MLflow registry is named. Give its URI, as in 'flows adapters mirror "
            "http://mlflow:5000', or set 'mirror' under '[registry]' in the configuration."
        )
    with stages.open_registry(settings) as registry:
        found = mirror(registry, wanted)
    return [
        {
            "model": row.model,
            "added": row.added,
            **{alias: row.aliases.get(alias) for alias in ("champion", "previous", "canary")},
            "generation": row.generation,
        }
        for row in found
    ]


def mirror_or_say(settings: Settings) -> None:
    """Let the configured mirror follow; what goes wrong is said and undoes nothing."""
    if settings.registry.mirror is None:
        return
    try:
        mirror(settings)
    except MolError as error:
        say(f"  the mirror is not up to date: {error}")
