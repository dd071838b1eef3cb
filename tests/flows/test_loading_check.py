"""Proves that serving loads only what the registry knows, signed and unaltered.

Real registries, signatures and tiny adapters; no engine.
"""

import logging
import sqlite3
from pathlib import Path

import pytest
from engine_calls import make_adapter
from tiny_loop import tiny_settings

from flows import adapter_trust, stages
from flows.config import RegistryConfig, Settings
from flows.loading_check import LoadingCheck, NotRegistered
from flows.registering import register_adapter
from promotion.promote import bootstrap, export_slots, read_slots
from promotion.signing import SignatureRefused
from promotion.tables import RegistryUnavailable
from serving.slot_table import SlotFile, write_slot_file
from training.artifact import Version, import_adapter

WEIGHTS = "adapter_model.safetensors"


def serving_home(home: Path, base: Path, url: str | None = None) -> tuple[Settings, Version]:
    """Return a home in which L1 serves a registered version."""
    settings = tiny_settings(home, base, ()).model_copy(
        update={"registry": RegistryConfig(url=url)}
    )
    version = import_adapter(home, make_adapter(home.parent / "made", base, 1), "L1", base)
    with stages.open_registry(settings) as registry:
        register_adapter(settings, registry, version.digest, {})
        bootstrap(home, registry, "L1", version.digest)
        export_slots(home, registry)
    return settings, version


def folder_of(settings: Settings, version: Version) -> Path:
    return settings.home / "adapters" / version.digest[7:]


def test_what_is_registered_and_whole_is_loaded_until_a_file_changes(
    tiny_base: Path, tmp_path: Path
) -> None:
    settings, version = serving_home(tmp_path / "home", tiny_base)
    check, folder = LoadingCheck(settings), folder_of(settings, version)
    asked = (version.name, version.digest, folder)
    check(*asked)
    check(*asked)
    weights = folder / WEIGHTS
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(SignatureRefused, match="altered"):
            check(*asked)
    weights.write_bytes(kept)
    check(*asked)
    (folder / "model.sig").unlink()
    with pytest.raises(SignatureRefused, match="not signed"):
        check(*asked)


def test_what_the_registry_does_not_know_is_not_loaded(tiny_base: Path, tmp_path: Path) -> None:
    settings, version = serving_home(tmp_path / "home", tiny_base)
    check, folder = LoadingCheck(settings), folder_of(settings, version)
    with pytest.raises(NotRegistered, match="does not know"):
        check("L1@" + "e" * 12, "sha256:" + "e" * 64, settings.home / "adapters/evil")
    with pytest.raises(NotRegistered, match="the registry has"):
        check(version.name, version.digest, settings.home / "adapters/evil")
    with pytest.raises(NotRegistered, match="the registry has"):
        check("L2@" + version.digest[7:19], version.digest, folder)


def test_a_version_from_before_signatures_serves_and_the_log_says_so(
    tiny_base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, version = serving_home(tmp_path / "home", tiny_base)
    check, folder = LoadingCheck(settings), folder_of(settings, version)
    (folder / "model.sig").unlink()
    with sqlite3.connect(settings.home / "registry.sqlite") as database:
        database.execute("UPDATE versions SET signer = NULL")
    database.close()
    with caplog.at_level(logging.WARNING, "flows.loading_check"):
        for _ in range(2):
            check(version.name, version.digest, folder)
    assert len([r for r in caplog.records if "flows adapters sign" in r.message]) == 1


def test_a_registry_that_is_away_holds_up_nothing_that_it_vouched_for(
    tiny_base: Path, tmp_path: Path
) -> None:
    place = tmp_path / "database"
    place.mkdir()
    url = f"sqlite:///{place}/registry.sqlite"
    settings, version = serving_home(tmp_path / "home", tiny_base, url)
    asked = (version.name, version.digest, folder_of(settings, version))
    check, new = LoadingCheck(settings), LoadingCheck(settings)
    check(*asked)
    place.rename(tmp_path / "away")
    check(*asked)
    with pytest.raises(RegistryUnavailable):
        new(*asked)


def test_a_slot_table_that_the_registry_did_not_write_is_told(
    tiny_base: Path, tmp_path: Path
) -> None:
    settings, _ = serving_home(tmp_path / "home", tiny_base)
    told = {row.what: row for row in adapter_trust.verify(settings, ())}
    assert told["slots.json"].ok
    evil = {"champion": "L1@" + "e" * 12, "digest": "sha256:" + "e" * 64, "path": "adapters/evil"}
    slots = read_slots(settings.home).slots
    forged = [e.model_copy(update=evil) if e.slot == "L1" else e for e in slots]
    write_slot_file(settings.home / "slots.json", SlotFile(slots=tuple(forged)))
    told = {row.what: row for row in adapter_trust.verify(settings, ())}
    assert not told["slots.json"].ok
    assert "'L1'" in told["slots.json"].found
    (settings.home / "slots.json").write_text("{")
    assert not {row.what: row for row in adapter_trust.verify(settings, ())}["slots.json"].ok
