"""Proves `flows run upkeep` and that commands obey the home's lake address.

A real Prefect server and a real lake; nothing is faked.
"""

import json
from pathlib import Path

import pytest
from trace_records import traffic, write_spool
from typer.testing import CliRunner

from curation.config import CurationConfig
from curation.manifest import Manifest, write_dataset
from flows import manual
from flows.cli import app, main
from flows.config import Settings, load_settings
from serving.records import content_id
from traces.config import LakeConfig
from traces.ingest import ingest
from traces.read import read_turns
from traces.storage.lake import Lake
from traces.storage.lake_address import LakeAddressRefused, read_address

pytestmark = pytest.mark.timeout(600)


def dataset_of(home: Path, snapshot_id: int) -> None:
    """Write an empty dataset that was made from a snapshot."""
    manifest = Manifest(
        digest=content_id(snapshot_id),
        slot="L2",
        snapshot_id=snapshot_id,
        config=CurationConfig(),
        code_version="0",
        row_ids=(),
        stages=(),
        splits={},
        mix={},
        contract=[],
    )
    write_dataset(home, manifest, [])


@pytest.fixture
def lake_home(home: Path, tmp_path: Path) -> Path:
    ingest(home, write_spool(tmp_path / "s.jsonl", traffic(6)), batch_lines=5)
    return home


def test_upkeep_keeps_what_datasets_were_made_from(
    prefect: None, lake_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lake.open(lake_home) as lake:
        snapshot_id = lake.snapshot_id()
    seen = list(read_turns(lake_home))
    dataset_of(lake_home, snapshot_id)
    ingest(lake_home, write_spool(tmp_path / "t.jsonl", traffic(9)))
    settings = Settings(
        home=lake_home, lake=LakeConfig(keep_snapshots_days=0, keep_files_hours=0, keep_days=1)
    )

    planned = [step["would"] for step in manual.plan(settings, "upkeep")]
    done = manual.run(settings, "upkeep").value

    assert planned[3].startswith("turns: 9 rows, 9 older than ")
    assert planned[4].startswith("files: ")
    assert done["snapshots"]["kept_for_datasets"] == 1
    assert done["files_removed"] > 0
    assert list(read_turns(lake_home, snapshot=snapshot_id)) == seen
    assert list(read_turns(lake_home)) == []
    assert "UPKEEP    " in capsys.readouterr().out


def test_without_a_lake_one_line_says_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["flows", "run", "upkeep", "--dry-run", "--home", str(home)])
    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("flows: No lake under")
    assert not home.exists()


def test_a_plan_is_printed_as_json(lake_home: Path) -> None:
    words = ["run", "upkeep", "--dry-run", "--json", "--home", str(lake_home)]
    result = CliRunner().invoke(app, words)

    assert result.exit_code == 0, result.output
    assert {step["stage"] for step in json.loads(result.stdout)} == {"upkeep"}


def test_every_command_settles_the_address_and_refuses_another(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[lake]\ndata = "s3://bucket/one"\n')

    load_settings(file, overrides={"home": home}, settle=False)
    assert not home.exists()
    load_settings(file, overrides={"home": home})
    assert read_address(home).data == "s3://bucket/one"
    assert load_settings(None, overrides={"home": home}).lake == LakeConfig()
    with pytest.raises(LakeAddressRefused, match="does not move"):
        load_settings(None, ["--lake.data", "s3://bucket/two"], {"home": home})
