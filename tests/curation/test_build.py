"""Datasets on disk: same inputs same bytes, nothing half done, clear refusals.

Proved on real files in `tmp_path` with the real contract. Turns come from memory here, and
from a real lake in `test_from_the_lake.py`.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from curation_turns import PROFILE, bundle, edited, misrouted

from curation import build as curate
from curation.build import NotEnoughExamples, select, store
from curation.config import CurationConfig
from curation.contract import ContractFailed
from curation.manifest import (
    DatasetDamaged,
    DatasetNotFound,
    Manifest,
    find_manifest,
    list_manifests,
    load_manifest,
    read_examples,
)
from serving.slots import UnknownSlot
from traces.errors import LakeNotFound

CONFIG = CurationConfig()


def turns(count: int = 40) -> list:
    return [
        edited(f"e{n}", f"right {n}", who=f"u{n % 20}")
        if n % 2
        else bundle(f"v{n}", who=f"u{n % 20}")
        for n in range(count)
    ]


def make(home: Path, found=None, slot: str = "L2", config=CONFIG, snapshot_id: int = 7) -> Manifest:
    chosen = select(turns() if found is None else found, slot, PROFILE, config)
    return store(home, slot, PROFILE, config, chosen, snapshot_id)


def everything(home: Path) -> dict[str, bytes]:
    return {str(f.relative_to(home)): f.read_bytes() for f in home.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def made_once(tmp_path_factory) -> tuple[Path, Manifest]:
    home = tmp_path_factory.mktemp("home")
    return home, make(home)


@pytest.fixture
def copied(made_once, tmp_path) -> tuple[Path, Manifest]:
    """A dataset that a test may damage."""
    home, made = made_once
    shutil.copytree(home, tmp_path / "copy")
    return tmp_path / "copy", made


def test_two_homes_get_the_same_bytes(tmp_path):
    make(tmp_path / "one")
    make(tmp_path / "two", list(reversed(turns())))
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    assert len(everything(tmp_path / "one")) == 2


def test_a_manifest_says_what_is_in_the_dataset(made_once):
    home, made = made_once
    rows = read_examples(home, made, None)
    assert made.row_ids == tuple(sorted(row.example_id for row in rows))
    assert made.counts["turns_seen"] == made.counts["candidates"] == 40
    assert made.splits["train"] + made.splits["holdout"] == len(rows) == 40
    assert made.splits["train"] == len(read_examples(home, made))
    assert sum(made.mix.values()) == made.splits["train"]
    assert set(made.mix) == {"answer/edit", "answer/verified"}
    assert made.snapshot_id == 7


def test_rows_come_back_as_they_were_chosen(made_once):
    chosen = select(turns(), "L2", PROFILE, CONFIG)
    assert tuple(read_examples(*made_once, None)) == chosen.examples


def test_the_file_holds_neither_time_nor_place(made_once):
    home, _ = made_once
    text = next(home.rglob("manifest.json")).read_text()
    assert str(home) not in text
    assert not re.search(r"\d{4}-\d\d-\d\d", text)


def test_the_same_rows_give_the_manifest_written_first(copied):
    home, first = copied
    before = everything(home)
    assert make(home, snapshot_id=8) == first
    assert everything(home) == before


def test_another_configuration_is_another_dataset(copied):
    home, made = copied
    other = make(home, config=CurationConfig(max_prompt_chars=11_999))
    assert other.row_ids == made.row_ids
    assert other.digest != made.digest
    assert {m.digest for m in list_manifests(home)} == {other.digest, made.digest}


def test_a_row_more_is_another_dataset(copied):
    home, made = copied
    assert make(home, [*turns(), edited("new")]).digest != made.digest


def test_the_funnel_tells_every_drop(tmp_path):
    found = [*turns(), bundle("x", slot="L1"), bundle("y", tier="C"), bundle("z", tier="C")]
    made = make(tmp_path, found)
    stage, entered, kept, dropped = made.funnel()[0]
    assert (stage, entered, kept) == ("turns", 43, 40)
    assert list(dropped.items()) == [("implicit outcome only", 2), ("answered by another slot", 1)]
    assert made.drops == dropped


def test_too_few_rows_are_refused_with_the_reasons_and_no_change(tmp_path):
    with pytest.raises(NotEnoughExamples) as caught:
        make(tmp_path, [*turns(10), bundle("x", slot="L1")])
    text = str(caught.value)
    assert "needs 16" in text
    assert "1 answered by another slot" in text
    assert "flows run ingest" in text
    assert "\n" not in text
    assert everything(tmp_path) == {}


def test_no_turns_at_all_are_refused(tmp_path):
    with pytest.raises(NotEnoughExamples, match="Of 0 turns seen"):
        make(tmp_path, [])


def test_a_router_with_one_duty_alone_is_refused(tmp_path):
    with pytest.raises(NotEnoughExamples, match="0 of duty 'answer'"):
        make(tmp_path, [misrouted(f"t{n}") for n in range(40)], "L0")


def test_a_router_with_both_duties_is_built(tmp_path):
    found = [misrouted(f"t{n}", who=f"u{n}") for n in range(20)]
    found += [bundle(f"c{n}", slot="L0", who=f"v{n}") for n in range(20)]
    assert {"answer/verified", "route/route", "route/verified"} == set(
        make(tmp_path, found, "L0").mix
    )


def test_a_broken_contract_writes_nothing(tmp_path):
    chosen = select(turns(), "L2", PROFILE, CONFIG)
    broken = chosen.examples[0].model_copy(update={"example_id": "sha256:" + "0" * 64})
    bad = curate.Chosen((broken, *chosen.examples[1:]), chosen.stages)
    with pytest.raises(ContractFailed, match="id_is_content"):
        store(tmp_path, "L2", PROFILE, CONFIG, bad, 7)
    assert everything(tmp_path) == {}


def test_an_unknown_slot_is_refused_before_anything_is_opened(tmp_path):
    with pytest.raises(UnknownSlot, match="L0, L1, L2, L3"):
        curate.build(tmp_path / "none", "L9", PROFILE, CONFIG)
    assert not (tmp_path / "none").exists()


def test_a_home_without_a_lake_is_refused_without_change(tmp_path):
    with pytest.raises(LakeNotFound):
        curate.build(tmp_path / "none", "L2", PROFILE, CONFIG)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("length", [4, 12, 64])
def test_a_dataset_is_found_by_the_start_of_its_digest(made_once, length):
    home, made = made_once
    bare = made.digest.removeprefix("sha256:")
    assert load_manifest(home, bare[:length]) == made
    assert load_manifest(home, "sha256:" + bare[:length]) == made


@pytest.mark.parametrize("digest", ["", "zz", "0" * 64, "sha256:"])
def test_an_unknown_digest_lists_those_there_are(made_once, digest):
    home, made = made_once
    with pytest.raises(DatasetNotFound, match=made.path.name):
        load_manifest(home, digest)


def test_a_digest_is_compared_beyond_the_folders_name(made_once):
    home, made = made_once
    with pytest.raises(DatasetNotFound):
        load_manifest(home, made.path.name + "x" * 52)


def test_an_empty_home_has_no_datasets(tmp_path):
    assert list_manifests(tmp_path) == []
    with pytest.raises(DatasetNotFound, match="none"):
        load_manifest(tmp_path, "abc")


def test_what_a_killed_run_left_is_not_a_dataset(tmp_path):
    (tmp_path / "datasets" / ".3fa9c1d2e4b5.77.tmp").mkdir(parents=True)
    assert list_manifests(tmp_path) == []


def test_changed_rows_are_noticed(copied):
    import pyarrow.parquet as pq

    home, made = copied
    file = home / made.rows_path
    pq.write_table(pq.read_table(file).slice(1), file)
    with pytest.raises(DatasetDamaged, match="not those of its manifest"):
        read_examples(home, made)


@pytest.mark.parametrize("data", [b"", b"not parquet"])
def test_an_unreadable_row_file_is_one_clear_error(copied, data):
    home, made = copied
    (home / made.rows_path).write_bytes(data)
    with pytest.raises(DatasetDamaged, match="flows run curate"):
        read_examples(home, made)


@pytest.mark.parametrize("data", [None, b"", b"{", b"\xff\x00", b'{"schema_version": 1}'])
def test_an_unreadable_manifest_is_one_clear_error(copied, data):
    home, made = copied
    file = home / made.path / "manifest.json"
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    with pytest.raises(DatasetDamaged):
        find_manifest(home, made.digest)
    with pytest.raises(DatasetDamaged):
        make(home)


def test_the_package_is_imported_without_its_heavy_libraries():
    code = (
        "import sys, curation.build, curation.contract; "
        "print([m for m in ('great_expectations', 'pandas', 'pyarrow', 'duckdb', 'torch') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
