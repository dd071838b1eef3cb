"""Proves that a home has one address for its lake and that no secret becomes part of it.

Real files; no server: what a wrong address does is said before one is asked.
"""

import json
from pathlib import Path

import pytest

from traces.config import LakeConfig
from traces.errors import LakeUnavailable
from traces.storage.lake import Lake
from traces.storage.lake_address import (
    Address,
    LakeAddressRefused,
    address_of,
    read_address,
    settle_address,
)

CLUSTER = LakeConfig(catalog="postgresql://me@db:5433/lake", data="s3://bucket/pre/fix/")
SETTLED = Address("dbname=lake host=db port=5433 user=me", "s3://bucket/pre/fix")


def test_the_first_settings_with_an_address_are_the_homes(home: Path) -> None:
    assert address_of(home, CLUSTER) == SETTLED
    assert not home.exists()

    assert settle_address(home, CLUSTER) == SETTLED
    assert read_address(home) == SETTLED
    assert settle_address(home, LakeConfig()) == SETTLED
    assert settle_address(home, LakeConfig(keep_days=3)) == SETTLED


def test_both_ways_to_write_an_address_are_the_same(home: Path) -> None:
    settle_address(home, CLUSTER)
    words = LakeConfig(catalog="postgres:user=me host=db dbname=lake port=5433", data=CLUSTER.data)

    assert settle_address(home, words) == SETTLED


@pytest.mark.parametrize(
    "other",
    [
        LakeConfig(catalog=CLUSTER.catalog, data="s3://bucket/other"),
        LakeConfig(catalog="postgresql://me@elsewhere/lake", data=CLUSTER.data),
        LakeConfig(data=CLUSTER.data),
    ],
)
def test_other_settings_are_refused_later(home: Path, other: LakeConfig) -> None:
    settle_address(home, CLUSTER)
    before = (home / "lake" / "address.json").read_bytes()

    with pytest.raises(LakeAddressRefused, match="does not move") as refusal:
        settle_address(home, other)

    assert "\n" not in str(refusal.value)
    assert (home / "lake" / "address.json").read_bytes() == before


def test_a_lake_in_the_home_stays_there(home: Path) -> None:
    Lake.open(home).close()

    with pytest.raises(LakeAddressRefused, match=r"catalog\.sqlite"):
        settle_address(home, CLUSTER)
    assert settle_address(home, LakeConfig()) == Address()


@pytest.mark.parametrize(
    "catalog",
    [
        "postgresql://me:hunter2@db/lake",
        "postgresql://db/lake?password=hunter2",
        "postgres:dbname=lake password = 'hunter2'",
        "postgres:dbname=lake passwrd=hunter2",
        "postgres://me:hunter2@db/lake",
        "mysql://me:hunter2@db/lake",
        "hunter2",
    ],
)
def test_a_password_in_the_settings_is_refused_and_not_repeated(home: Path, catalog: str) -> None:
    with pytest.raises(LakeAddressRefused, match=r"lake\.catalog") as refusal:
        settle_address(home, LakeConfig(catalog=catalog))

    assert "hunter2" not in str(refusal.value)
    assert not home.exists()


@pytest.mark.parametrize("data", ["bucket/prefix", "gs://bucket", "s3://", "s3://key:secret@b"])
def test_only_object_storage_is_an_address_for_files(home: Path, data: str) -> None:
    with pytest.raises(LakeAddressRefused, match="s3://bucket/prefix") as refusal:
        settle_address(home, LakeConfig(data=data))

    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "[]", '{"catalogue": 1}'])
def test_a_damaged_address_is_one_clear_line(home: Path, text: str) -> None:
    (home / "lake").mkdir(parents=True)
    (home / "lake" / "address.json").write_text(text)

    with pytest.raises(LakeAddressRefused, match=r"address\.json"):
        Lake.open(home)


def test_files_in_s3_need_keys(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    settle_address(home, LakeConfig(data="s3://bucket/lake"))

    with pytest.raises(LakeAddressRefused, match="AWS_ACCESS_KEY_ID is not in the environment"):
        Lake.open(home)


def test_a_server_that_is_not_there_is_one_clear_line(home: Path) -> None:
    settle_address(home, LakeConfig(catalog="postgres:host=127.0.0.1 port=9 dbname=lake"))

    with pytest.raises(LakeUnavailable, match="Unable to connect") as refusal:
        Lake.open(home)
    assert "\n" not in str(refusal.value)
    assert json.loads((home / "lake" / "address.json").read_text())["data"] is None
