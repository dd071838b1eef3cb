"""Signatures of adapter folders: OpenSSF model signing with a key of one's own.

In: a folder and an elliptic-curve key. Out: `model.sig` in the folder, a Sigstore bundle over
the digests of all other files (https://github.com/ossf/model-signing-spec), which
`model_signing verify key` checks too. A signature says who vouches for an adapter, not that it
is good; that is the gate's word. The library is slow to import, so it is imported late.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promotion.state import RegisteredVersion
from serving.disk import disk_errors, sync_folder, write_atomic
from serving.errors import AdapterNotServable, MolError

if TYPE_CHECKING:
    from promotion.registry import Registry

SIGNATURE_NAME = "model.sig"
_FAULTS = (
    (r"Hash mismatch for ('[^']*')", "{} was altered"),
    (r"Extra files found in model '[^']*': ([^\"\]]*)", "{} came later"),
    (r"Missing files in model '[^']*': ([^\"\]]*)", "{} is missing"),
)


class SignatureRefused(AdapterNotServable):
    """The folder is not what was signed, or nobody known signed it."""


class UnsignedAdapter(SignatureRefused):
    """The folder has no signature."""


class KeyUnusable(MolError, ValueError):
    """A file is no private key that can sign."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key on disk, and what is public of it."""

    path: Path
    public_key: str
    """PEM text."""

    @property
    def fingerprint(self) -> str:
        """What the registry and the signatures call it."""
        return fingerprint_of(self.public_key)


def fingerprint_of(public_key: str) -> str:
    """Return the SHA-256 of a public key's PEM text in hex, as signatures name their key."""
    return hashlib.sha256(public_key.encode()).hexdigest()


def signing_key(home: Path, own: Path | None = None) -> SigningKey:
    """Return the key of a home, made at first use, or the one in the file `own`.

    The home's is `keys/signing.key` (mode 0600) with the public half beside it.

    Raises:
        KeyUnusable: if the file is no PEM of an elliptic-curve key, or encrypted.
        DiskFull: if a new one could not be stored; nothing of it stays.
    """
    path = own or home / "keys" / "signing.key"
    if own is None and not path.exists():
        _make_key(path)
    public_key = _public_half(path)
    if own is None:
        write_atomic(path.with_suffix(".pub"), public_key.encode())
    return SigningKey(path, public_key)


def sign_artifact(folder: Path, key: SigningKey) -> None:
    """Write the signature of a folder into it, in the place of any there is.

    Raises:
        DiskFull: if a disk, the one for temporary files among them, took no more.
    """
    from model_signing import hashing, signing

    ignored = hashing.Config().set_ignored_paths(paths=[SIGNATURE_NAME], ignore_git_paths=False)
    config = signing.Config().set_hashing_config(ignored)
    config.use_elliptic_key_signer(private_key=key.path)
    with disk_errors(folder), tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / SIGNATURE_NAME
        config.sign(folder, written)
        write_atomic(folder / SIGNATURE_NAME, written.read_bytes())


def check_signature(folder: Path, name: str, digest: str, signers: Mapping[str, str]) -> str:
    """Check that a known key signed exactly this folder; return the key's fingerprint.

    Args:
        folder: named by its digest when it was signed, as published adapters are.
        name: what to call the adapter in messages.
        digest: what must have been signed.
        signers: public keys (PEM) by fingerprint.

    Raises:
        UnsignedAdapter: if there is no signature.
        SignatureRefused: if it is of another key or another adapter, or a file differs.
    """
    try:
        bundle = json.loads((folder / SIGNATURE_NAME).read_bytes())
        fingerprint = str(bundle["verificationMaterial"]["publicKey"]["hint"])
    except FileNotFoundError as error:
        raise UnsignedAdapter(
            f"Adapter {name!r} is not signed: {str(folder / SIGNATURE_NAME)!r} is missing. If you "
            f"know where it comes from, run 'flows adapters sign {name}'."
        ) from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _refused(name, f"{SIGNATURE_NAME} is damaged or cannot be read") from error
    if fingerprint not in signers:
        known = ", ".join(repr(key[:12]) for key in signers) or "none"
        raise _refused(name, f"its key {fingerprint[:12]!r} is not among the registry's ({known})")
    # Signatures of earlier code leave Git's own files out, whatever is in them.
    for stray in sorted(folder.glob(".git*")):
        raise _refused(name, f"a file was added that no adapter has: {stray.name!r}")
    _verify(folder, name, signers[fingerprint])
    signed = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    subject = signed["subject"][0]["name"]
    if subject != digest.removeprefix("sha256:"):
        raise _refused(name, f"its signature is of {subject!r}")
    return fingerprint


def register_signed(
    registry: "Registry",
    home: Path,
    version: RegisteredVersion,
    own_key: Path | None = None,
    verify: Callable[[Path], object] | None = None,
) -> RegisteredVersion:
    """Sign a version's folder and enter it in the registry; a second time changes nothing.

    `verify` raises if a folder that is about to be signed is not what its digest says. One that
    was registered before there were signatures stays unsigned: `flows adapters sign` is a
    person's decision.

    Raises:
        SignatureRefused: if it was signed, and was altered since.
        UnknownSigner: if the registry knows other keys than this one.
        VersionConflict: if its digest has another slot, origin or path.
    """
    known = registry.registered(version.digest)
    if known is not None and known.signer is None:
        return registry.register(version)
    key = signing_key(home, own_key)
    registry.signers.admit(key.public_key)
    folder, known_keys = home / version.path, registry.signers.keys()
    try:
        check_signature(folder, version.name, version.digest, known_keys)
    except SignatureRefused:
        if known is not None:
            raise  # it was signed: a signature made anew would hide what happened to it
        if verify is not None:
            verify(folder)
        sign_artifact(folder, key)
    return registry.register(version.model_copy(update={"signer": key.fingerprint}))


def _verify(folder: Path, name: str, public_key: str) -> None:
    from model_signing import verifying

    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "key.pub"
        file.write_text(public_key)
        try:
            config = verifying.Config().use_elliptic_key_verifier(public_key=file)
            config.verify(folder, folder / SIGNATURE_NAME)
        # The library lets through whatever its parsers and the cryptography raise.
        except Exception as error:
            raise _refused(name, _fault(error)) from error


def _fault(error: Exception) -> str:
    said = str(error).replace("\\'", "'")  # it holds the text of a list of texts
    found = [words.format(m) for pattern, words in _FAULTS for m in re.findall(pattern, said)]
    return "; ".join(found) or f"{SIGNATURE_NAME}: {said[:200] or type(error).__name__}"


def _refused(name: str, reason: str) -> SignatureRefused:
    return SignatureRefused(
        f"Adapter {name!r} does not have a valid signature: {reason}. It cannot serve; restore "
        "its folder, or train or import it again."
    )


def _make_key(path: Path) -> None:
    """Write a new P-256 key; of several processes at once one makes it, the others take that."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    data = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # mode 0600
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, path)
        sync_folder(path.parent)


def _public_half(path: Path) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    try:
        private = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise KeyUnusable(
            f"Cannot sign with {str(path)!r}: {error}. It must be the PEM file of an unencrypted "
            "private key, as 'openssl ecparam -name prime256v1 -genkey -noout' makes one; name "
            "it in '[registry] key', or leave that out for a key of the home's own."
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise KeyUnusable(
            f"Cannot sign with {str(path)!r}: it is no elliptic-curve key. Make one with "
            "'openssl ecparam -name prime256v1 -genkey -noout'."
        )
    public = private.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
