"""Every command of README and docs runs, and every file the README links to is there.

Nothing is faked.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = [README, *(file.read_text() for file in sorted((ROOT / "docs").glob("*.md")))]
COMMANDS = [
    line
    for text in DOCS
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for line in block.split("\n")
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout's examples and a home that has been through the first stages."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    assert words[0] == "flows"
    flows = Path(sys.executable).with_name("flows")
    return subprocess.run(
        [flows, *words[1:]], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_commands_of_the_readme_run(folder):
    (folder / ".mol" / "base").mkdir(parents=True)
    base = folder / ".mol" / "base" / "SmolLM2-135M-Instruct"
    base.mkdir()
    (base / "config.json").write_text("{}")
    commands = sorted(filter(None, COMMANDS), key=lambda c: not c.startswith("flows run"))
    assert len(commands) > 8
    failed = {c: done.stderr for c in commands if (done := run(c, folder)).returncode != 0}
    assert failed == {}


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z-]+)\b", README))))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
