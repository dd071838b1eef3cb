"""Signatures of adapters: who may vouch, and what is refused, each in one line.

Real keys, real OpenSSF signatures, real registries; an adapter is a folder with two files.
One signature is checked by the library's own command.
"""

import json
import multiprocessing
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from registry_records import BASE_DIGEST, SLOTS, digest_of, gated

from promotion.promote import begin_canary, bootstrap, promote, rollback
from promotion.registry import Registry
from promotion.signers import UnknownSigner
from promotion.signing import (
    KeyUnusable,
    SignatureRefused,
    SigningKey,
    UnsignedAdapter,
    check_signature,
    register_signed,
    sign_artifact,
    signing_key,
)
from promotion.state import RegisteredVersion
from serving.disk import DiskFull
from serving.errors import AdapterNotServable


def _version(number: int) -> RegisteredVersion:
    return RegisteredVersion(
        slot="L2",
        digest=digest_of(number),
        base_digest=BASE_DIGEST,
        path=f"adapters/{number:064x}",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def _folder(home: Path, number: int) -> Path:
    folder = home / _version(number).path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(b"weights of %d" % number)
    (folder / "version.json").write_text("{}")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """L2 serves 1, which is signed as 2 is."""
    with Registry.open(tmp_path, SLOTS) as registry:
        for number in (1, 2):
            _folder(tmp_path, number)
            register_signed(registry, tmp_path, _version(number))
        bootstrap(tmp_path, registry, "L2", digest_of(1))
    return tmp_path


def _keys(home: Path) -> dict[str, str]:
    with Registry.open(home) as registry:
        return registry.signers.keys()


def test_the_first_key_is_made_kept_from_others_and_known_to_the_registry(home: Path) -> None:
    key = signing_key(home)
    assert stat.S_IMODE(key.path.stat().st_mode) == 0o600
    assert (home / "keys" / "signing.pub").read_text() == key.public_key
    assert _keys(home) == {key.fingerprint: key.public_key}
    with Registry.open(home) as registry:
        assert registry.version(digest_of(1)).signer == key.fingerprint


def test_the_librarys_own_command_accepts_the_signature(home: Path) -> None:
    folder = home / _version(1).path
    command = [sys.executable, "-m", "model_signing", "verify", "key", folder, "--signature",
               folder / "model.sig", "--public_key", home / "keys" / "signing.pub"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _alter(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"other weights")


def _add(folder: Path) -> None:
    (folder / "extra.json").write_text("{}")


def _pickle(folder: Path) -> None:
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")


def _remove(folder: Path) -> None:
    (folder / "version.json").unlink()


def _link(folder: Path) -> None:
    (folder / "more").symlink_to("/etc/hostname")


def _add_gits(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "hook.pkl").write_bytes(b"\x80\x04.")


def _unsign(folder: Path) -> None:
    (folder / "model.sig").unlink()


def _damage(folder: Path) -> None:
    (folder / "model.sig").write_bytes(b"\x00\xff")


def _empty(folder: Path) -> None:
    (folder / "model.sig").write_bytes(b"[]")


def _claim(folder: Path) -> None:
    """Change what the signed statement says, not what signs it."""
    bundle = json.loads((folder / "model.sig").read_bytes())
    bundle["dsseEnvelope"]["payload"] = "e30="
    (folder / "model.sig").write_text(json.dumps(bundle))


def _of_another(folder: Path) -> None:
    """Put another adapter, with its valid signature, under this name."""
    other = folder.with_name(f"{1:064x}")
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def _by_a_stranger(folder: Path) -> None:
    sign_artifact(folder, signing_key(folder / ".." / ".." / "elsewhere"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_alter, "'adapter_model.safetensors' was altered"),
        (_add, "extra.json came later"),
        (_pickle, "adapter_model.bin came later"),
        (_add_gits, "a file was added that no adapter has: '.git'"),
        (_remove, "version.json is missing"),
        (_link, "symlink"),
        (_unsign, "is not signed"),
        (_damage, "model.sig is damaged"),
        (_empty, "model.sig is damaged"),
        (_claim, "model.sig"),
        (_of_another, "its signature is of '000"),
        (_by_a_stranger, "is not among the registry's"),
    ],
)
def test_what_is_not_as_signed_takes_no_traffic(home: Path, harm, words: str) -> None:
    harm(home / _version(2).path)
    report = gated(home, 1, 2)
    for attempt in (
        lambda: promote(home, report, verify=lambda path: None),
        lambda: begin_canary(home, report, 5, verify=lambda path: None),
    ):
        with pytest.raises(SignatureRefused, match=words) as refusal:
            attempt()
        assert "\n" not in str(refusal.value)
    with Registry.open(home) as registry:
        assert registry.slot("L2").generation == 1


def test_a_row_that_points_to_another_signed_adapter_is_refused(home: Path) -> None:
    """Somebody who can write the database names another folder for what passed the gate."""
    database = sqlite3.connect(home / "registry.sqlite")
    paths = (_version(1).path, digest_of(2))
    database.execute("UPDATE versions SET path = ? WHERE digest = ?", paths)
    database.commit()
    database.close()
    with pytest.raises(SignatureRefused, match="its signature is of '000"):
        promote(home, gated(home, 1, 2), verify=lambda path: None)


def test_going_back_and_starting_check_it_too(home: Path) -> None:
    promote(home, gated(home, 1, 2), verify=lambda path: None)
    _alter(home / _version(1).path)
    with pytest.raises(SignatureRefused, match="was altered"):
        rollback(home, "L2")
    with Registry.open(home) as registry, pytest.raises(SignatureRefused, match="was altered"):
        bootstrap(home, registry, "L2", digest_of(1))


def test_a_second_key_is_entered_by_a_person_and_can_be_taken_back(home: Path) -> None:
    stranger = signing_key(home / "elsewhere")
    _folder(home, 3)
    with Registry.open(home) as registry:
        with pytest.raises(UnknownSigner, match="flows adapters keys --add"):
            register_signed(registry, home, _version(3), stranger.path)
        assert registry.registered(digest_of(3)) is None
        registry.signers.admit(stranger.public_key, further=True)
        signed = register_signed(registry, home, _version(3), stranger.path)
        assert signed.signer == stranger.fingerprint
        folder = home / _version(3).path
        keys = registry.signers.keys()
        assert check_signature(folder, "x", digest_of(3), keys) == stranger.fingerprint
        registry.signers.remove(stranger.fingerprint[:8])
        with pytest.raises(SignatureRefused, match="not among"):
            check_signature(folder, "x", digest_of(3), registry.signers.keys())
        with pytest.raises(UnknownSigner, match="No key 'ffff'"):
            registry.signers.remove("ffff")


def test_a_removed_key_signs_no_more_even_if_it_was_the_only_one(home: Path) -> None:
    """Neither training nor signing by hand enters it again; a person may."""
    folder, name, digest = home / _version(1).path, _version(1).name, digest_of(1)
    key = signing_key(home)
    _folder(home, 3)
    with Registry.open(home) as registry:
        registry.signers.remove(key.fingerprint)
        for again in (
            lambda: register_signed(registry, home, _version(3)),
            lambda: registry.signers.admit(key.public_key),
        ):
            with pytest.raises(UnknownSigner, match=r"was removed .* UTC and signs no more"):
                again()
        with pytest.raises(UnknownSigner, match="does not know"):  # nor is another one the first
            registry.signers.admit(signing_key(home / "elsewhere").public_key)
        with pytest.raises(SignatureRefused, match="not among"):
            check_signature(folder, name, digest, registry.signers.keys())
        registry.signers.admit(key.public_key, further=True)
        assert check_signature(folder, name, digest, registry.signers.keys()) == key.fingerprint


def test_keys_of_a_registry_of_earlier_code_stay_accepted(home: Path) -> None:
    keys = _keys(home)
    with closing(sqlite3.connect(home / "registry.sqlite")) as database:
        database.execute("ALTER TABLE signers DROP COLUMN removed_at")
        database.commit()
    assert _keys(home) == keys
    with Registry.open(home) as registry:
        registry.signers.remove(next(iter(keys)))
    assert _keys(home) == {}


def test_a_signature_that_is_a_folder_is_refused(home: Path) -> None:
    file = home / _version(1).path / "model.sig"
    file.unlink()
    file.mkdir()
    with pytest.raises(SignatureRefused, match="damaged or cannot be read"):
        check_signature(file.parent, _version(1).name, digest_of(1), _keys(home))


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 100 bytes, as if the disk had no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_part_of_a_key(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(DiskFull, match=r"signing\.key"):
        signing_key(tmp_path)
    assert list((tmp_path / "keys").iterdir()) == []


def test_a_full_disk_leaves_the_signature_that_was(home: Path, full_disk: None) -> None:
    folder = home / _version(1).path
    before = (folder / "model.sig").read_bytes()
    with pytest.raises(DiskFull, match=folder.name):
        sign_artifact(folder, SigningKey(home / "keys" / "signing.key", ""))
    assert (folder / "model.sig").read_bytes() == before


def test_registering_again_signs_nothing_anew(home: Path) -> None:
    signature = home / _version(1).path / "model.sig"
    before = signature.read_bytes()
    with Registry.open(home) as registry:
        register_signed(registry, home, _version(1))
    assert signature.read_bytes() == before


def test_what_was_altered_is_not_signed_anew(home: Path) -> None:
    _alter(home / _version(1).path)
    signature = home / _version(1).path / "model.sig"
    before = signature.read_bytes()
    with Registry.open(home) as registry, pytest.raises(SignatureRefused, match="was altered"):
        register_signed(registry, home, _version(1))
    assert signature.read_bytes() == before


def test_what_lost_its_signature_is_signed_by_a_person_alone(home: Path) -> None:
    (home / _version(1).path / "model.sig").unlink()
    with Registry.open(home) as registry, pytest.raises(UnsignedAdapter, match="adapters sign"):
        register_signed(registry, home, _version(1))
    assert not (home / _version(1).path / "model.sig").exists()


def test_what_is_not_what_its_digest_says_is_not_signed_at_all(home: Path) -> None:
    def not_it(path: Path) -> None:
        raise AdapterNotServable(str(path))

    folder = _folder(home, 3)
    with Registry.open(home) as registry:
        with pytest.raises(AdapterNotServable, match="adapters"):
            register_signed(registry, home, _version(3), verify=not_it)
        assert registry.registered(digest_of(3)) is None
    assert not (folder / "model.sig").exists()


def test_what_was_registered_unsigned_stays_so_until_a_person_signs(home: Path) -> None:
    folder = _folder(home, 3)
    with Registry.open(home) as registry:
        registry.register(_version(3))
        assert register_signed(registry, home, _version(3)).signer is None
        with pytest.raises(UnsignedAdapter, match="flows adapters sign L2@"):
            check_signature(folder, _version(3).name, digest_of(3), registry.signers.keys())


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_a_file_that_is_no_key_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "own.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(KeyUnusable, match=r"Cannot sign with .*own\.pem") as refusal:
        signing_key(tmp_path, file)
    assert "\n" not in str(refusal.value)


def _make(home: Path, barrier, results) -> None:
    barrier.wait()
    results.put(signing_key(home).fingerprint)


def test_of_several_processes_at_first_use_one_makes_the_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(6), context.Queue()
    workers = [context.Process(target=_make, args=(tmp_path, barrier, results)) for _ in range(6)]
    for worker in workers:
        worker.start()
    made = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert made == {signing_key(tmp_path).fingerprint}
    assert sorted(f.name for f in (tmp_path / "keys").iterdir()) == ["signing.key", "signing.pub"]
