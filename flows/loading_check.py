"""Whether what serving is about to load is what the registry knows: `flows serve` asks each time.

In: the settings; then a served name, its digest and its folder, as `slots.json` has them. Out: an
error where the registry knows no such version, its folder is not signed by a known key, or its
content is not what the digest says. Files are read again only where one changed.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from flows.config import Settings
from flows.registering import check_content
from promotion.registry import Registry
from promotion.signing import UnsignedAdapter, check_signature
from promotion.state import RegisteredVersion
from promotion.tables import RegistryBusy, RegistryUnavailable
from serving.errors import AdapterNotServable

log = logging.getLogger(__name__)

Known = tuple[RegisteredVersion, Mapping[str, str]]
"""A version, and the public keys by fingerprint, as the registry has them."""


class NotRegistered(AdapterNotServable):
    """The slot table names a version that the registry does not know so."""


class LoadingCheck:
    """Asks the registry about versions that are about to be loaded; threads may share one."""

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home
        self._where = settings.registry.url or settings.home
        self._known: dict[str, Known] = {}
        self._whole: dict[Path, object] = {}

    def __call__(self, name: str, digest: str, path: Path) -> None:
        """Check one version.

        Where the registry cannot be reached, what it said of this digest before still holds.

        Raises:
            NotRegistered: if the registry has no such version of that name in that folder.
            SignatureRefused, AdapterNotServable, HeadInvalid: if the folder is not as it was signed
                or is not what its digest says.
            RegistryUnavailable: if it cannot be asked, and never was.
        """
        version, keys = self._ask(digest)
        if (name, path) != (version.name, self._home / version.path):
            raise NotRegistered(
                f"The slot table has {name!r} in {str(path)!r}, the registry has {version.name!r} "
                f"in {str(self._home / version.path)!r}. 'flows adapters verify' compares them."
            )
        seen = (version, tuple(keys), _stamps(path))
        if self._whole.get(path) == seen:
            return
        try:
            check_signature(path, name, digest, keys)
        except UnsignedAdapter as refusal:
            if version.signer is not None:
                raise
            # It served before there were signatures; only a person can say that it is good.
            log.warning("It serves all the same, as it did before there were any: %s", refusal)
        check_content(path, version)
        self._whole[path] = seen

    def _ask(self, digest: str) -> Known:
        try:
            with Registry.open(self._where) as registry:
                version, keys = registry.registered(digest), registry.signers.keys()
                label = registry.label
        except (RegistryUnavailable, RegistryBusy) as error:
            if digest not in self._known:
                raise
            log.warning("What the registry said before still holds: %s", error)
            return self._known[digest]
        if version is None:
            raise NotRegistered(
                f"The slot table names digest {digest!r}, which registry {label!r} does not know. "
                "'flows adapters verify' compares them; a start of 'flows serve' writes the table "
                "anew."
            )
        self._known[digest] = (version, keys)
        return version, keys


def _stamps(folder: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    """Return what changes when a file in a folder does."""
    found = []
    for file in sorted(folder.rglob("*")):
        stat = file.stat(follow_symlinks=False)
        found.append((str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(found)
