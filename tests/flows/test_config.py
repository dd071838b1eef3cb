"""Settings: default < TOML < flag, every mistake named. Nothing is faked."""

import re
from pathlib import Path

import pytest

from flows.config import Settings, SettingsInvalid, describe_settings, load_settings

NUMBER = r"\d+(\.\d+)?(e-\d+)?"
BUNDLED = Path(__file__).parents[2] / "infra" / "configs" / "bundled.toml"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_a_file_overrides_defaults_and_a_flag_overrides_the_file(tmp_path):
    file = write(tmp_path, "seed = 3\n[training]\nepochs = 5\nr = 8\n")
    settings = load_settings(file, ["--training.epochs", "7"])
    assert (settings.seed, settings.training.epochs, settings.training.r) == (3, 7, 8)
    assert settings.gate == Settings().gate


def test_flags_are_kebab_cased_and_may_carry_their_value():
    settings = load_settings(None, ["--gate.min-items=12", "--curation.min-rows", "4"])
    assert (settings.gate.min_items, settings.curation.min_rows) == (12, 4)


def test_named_options_win_over_the_file(tmp_path):
    file = write(tmp_path, "seed = 3\n")
    assert load_settings(file, overrides={"seed": 4, "slot": None}).seed == 4


def test_the_bundled_profile_is_valid():
    assert load_settings(BUNDLED).sources


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--training.epohcs", "3"], "training.epohcs"),
        (["--training.epochs", "many"], "training.epochs"),
        (["--training.epochs", "0"], "training.epochs"),
        (["--training.epochs"], "--training.epochs"),
        (["--bogus"], "--bogus"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_flag_is_named(flags, named):
    with pytest.raises(SettingsInvalid, match=named):
        load_settings(None, flags)


@pytest.mark.parametrize(
    "text", ["seed = \n", "unknown = 1\n", "seed = -1\n", "[training]\nmethod = 'magic'\n"]
)
def test_a_wrong_file_is_refused(tmp_path, text):
    with pytest.raises(SettingsInvalid):
        load_settings(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SettingsInvalid, match="Cannot read the configuration"):
        load_settings(tmp_path / "none.toml")


def test_every_setting_says_what_it_means():
    assert [row["flag"] for row in describe_settings() if not row["meaning"]] == []


def test_what_is_learnt_does_not_depend_on_where_it_lies():
    here, there = Settings(home=Path("a")), Settings(home=Path("b"))
    assert here.learning_digest == there.learning_digest
    assert here.learning_digest != Settings(seed=1).learning_digest


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("registry.url", "postgresql+psycopg://mol:hunter2@db/registry"),
        ("registry.url", "postgresql://db/registry?password=hunter2"),
        ("registry.mirror", "https://ann:hunter2@mlflow"),
        ("serve.engines", "http://ann:hunter2@vllm:8000"),
        ("serve.engines", "http://127.0.0.1:8000,http://vllm:8000?api_key=hunter2"),
        ("serve.router.embeddings", "http://ann:hunter2@vllm:8000"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(name: str, address: str):
    with pytest.raises(SettingsInvalid, match=f"{name}.*environment") as refusal:
        load_settings(None, [f"--{name}", address])
    assert "hunter2" not in str(refusal.value)
    assert "ann" not in str(refusal.value)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8000,http://ann:hunter2@vllm:8000", "http://vllm:8000?api_key=hunter2"],
)
def test_a_secret_in_an_engines_address_is_refused_and_not_repeated(address: str):
    with pytest.raises(SettingsInvalid, match="MOL_ENGINE_KEY") as refusal:
        load_settings(None, [], {"engine": address})
    assert "hunter2" not in str(refusal.value)
    assert "ann" not in str(refusal.value)


def test_replicas_of_the_server_are_a_list_or_have_commas_between(tmp_path):
    flag = load_settings(None, ["--serve.engines", "http://a:1, http://b:1"], {"home": tmp_path})
    file = write(tmp_path, 'serve.engines = ["http://a:1", "http://b:1"]')
    assert flag.serve.engines == ("http://a:1", "http://b:1")
    assert load_settings(file, [], {"home": tmp_path}).serve == flag.serve


@pytest.mark.parametrize("number", ["1" + "0" * 13, "1" + "0" * 400, "inf", "-inf", "nan"])
def test_a_number_that_nothing_can_reckon_with_is_refused(number: str):
    flags = [r["flag"] for r in describe_settings() if re.fullmatch(NUMBER, r["default"])]
    assert len(flags) > 60
    for flag in flags:
        given = [flag, number] if "." in flag else []
        with pytest.raises(SettingsInvalid, match=flag[2:].replace("-", "_")) as refusal:
            load_settings(None, given, {} if given else {flag[2:]: number})
        assert len(str(refusal.value)) < 700
