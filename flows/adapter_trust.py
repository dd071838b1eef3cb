"""Signatures and the log: `flows adapters sign|keys|verify`.

In: the settings and names. Out: rows ready for a table or JSON.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flows import stages
from flows.adapters import version_named
from flows.config import Settings
from flows.registering import check_content
from serving.errors import MolError
from serving.records import Record

if TYPE_CHECKING:
    from promotion.registry import Registry
    from promotion.state import RegisteredVersion


class NothingToSign(MolError, ValueError):
    """No version is named, and none is unsigned."""


class Checked(Record):
    """One thing that `verify` looked at."""

    what: str
    ok: bool
    found: str


def sign(settings: Settings, named: Sequence[str]) -> list[dict[str, Any]]:
    """Check and sign the versions that are named, or every one that is unsigned.

    Raises:
        NothingToSign: if none is named and none is unsigned.
        AdapterNotServable: naming the first that is not what its digest says; it and those
            after it stay unsigned.
    """
    from promotion.signing import sign_artifact, signing_key

    key = signing_key(settings.home, settings.registry.key)
    with stages.open_registry(settings) as registry:
        wanted = [version_named(settings, registry, which) for which in named] or [
            *registry.unsigned()
        ]
        if not wanted:
            raise NothingToSign("Every version is signed. Name one to sign it anew.")
        registry.signers.admit(key.public_key)
        for version in wanted:
            check_content(settings.home / version.path, version)
            sign_artifact(settings.home / version.path, key)
            registry.signers.signed(version.digest, key.fingerprint)
    return [{"adapter": version.name, "signed": key.fingerprint[:12]} for version in wanted]


def keys(settings: Settings, add: bool = False, remove: str | None = None) -> list[dict[str, Any]]:
    """Return the keys that the registry knows, after adding this home's or removing one.

    Raises:
        UnknownSigner: if there is none to remove.
        KeyUnusable: if the configured key cannot sign.
    """
    from promotion.signing import signing_key

    with stages.open_registry(settings) as registry:
        if remove is not None:
            registry.signers.remove(remove)
        own = signing_key(settings.home, settings.registry.key)
        if add:
            registry.signers.admit(own.public_key, further=True)
        known = registry.signers.keys()
    listed = dict.fromkeys([*known, own.fingerprint])
    return [
        {
            "key": key,
            "known": key in known,
            "own": str(own.path) if key == own.fingerprint else None,
        }
        for key in listed
    ]


def verify(settings: Settings, named: Sequence[str]) -> list[Checked]:
    """Check the log against the slots, and the artifacts of the slots or of the versions named.

    Where none is named, `slots.json`, by which serving goes, is compared with the registry too.
    """
    from promotion.tables import CorruptRegistry

    with stages.open_registry(settings) as registry:
        try:
            log = Checked(what="log", ok=True, found=f"{registry.verify_chain()} events, unbroken")
        except CorruptRegistry as error:
            log = Checked(what="log", ok=False, found=str(error))
        if named:
            versions = [version_named(settings, registry, which) for which in named]
            return [log, *(check_version(settings, registry, version) for version in versions)]
        return [log, *_check_slots(settings, registry), _check_table(settings, registry)]


def check_version(
    settings: Settings, registry: "Registry", version: "RegisteredVersion"
) -> Checked:
    """Say whether a version's folder is there, what its digest says, and as it was signed."""
    from promotion.promote import check_artifact

    try:
        check_artifact(settings.home, registry, version, lambda path: check_content(path, version))
    except MolError as error:
        return Checked(what=version.name, ok=False, found=str(error))
    return Checked(what=version.name, ok=True, found="as it was signed")


def _check_slots(settings: Settings, registry: "Registry") -> Iterator[Checked]:
    """Check what every slot names; a name that the registry cannot tell is not as it should be."""
    from promotion.state import BASE

    try:
        states = registry.slots()
    except MolError as error:
        yield Checked(what="slots", ok=False, found=str(error))
        return
    for state in states:
        for digest in dict.fromkeys((state.champion, state.previous, state.canary)):
            if digest is None or digest == BASE:
                continue
            try:
                version = registry.version(digest)
            except MolError as error:
                yield Checked(what=f"{state.slot}: {digest}", ok=False, found=str(error))
            else:
                yield check_version(settings, registry, version)


def _check_table(settings: Settings, registry: "Registry") -> Checked:
    """Say whether `slots.json` is what the registry would write."""
    from promotion.promote import slot_table
    from serving.slot_table import read_slot_file

    path = settings.home / "slots.json"
    if not path.exists():
        return Checked(what=path.name, ok=True, found="not written yet")
    try:
        told, due = read_slot_file(path), slot_table(registry)
    except MolError as error:
        return Checked(what=path.name, ok=False, found=str(error))
    names = dict.fromkeys(entry.slot for entry in (*due.slots, *told.slots))
    differs = ", ".join(repr(name) for name in names if told.get(name) != due.get(name))
    if not differs:
        return Checked(what=path.name, ok=True, found="what the registry says")
    return Checked(
        what=path.name,
        ok=False,
        found=f"It says something else than the registry of {differs}. A start of 'flows serve', a "
        "promotion or a rollback writes it anew.",
    )
