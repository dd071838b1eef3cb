"""Proves the house rules that no linter knows: names, sizes, marks, paths, and import cost.

The files are those that git tracks or would track; nothing is faked.
"""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("serving", "traces", "curation", "training", "promotion", "flows", "infra")
LINE_CEILING = 400
HEAVY = ("torch", "transformers", "trl", "peft", "prefect", "great_expectations", "duckdb")
HELP_TARGETS = ("help", "run", "test", "check", "bench", "vllm", "clean")


def tracked(pattern: str = "*") -> list[Path]:
    """Return the repository's files whose name matches a pattern, without those git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        files = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no git
        tops = [*PACKAGES, "tests", "benchmarks", "examples", "docs"]
        files = [f for top in tops for f in (REPOSITORY / top).rglob("*")]
        files += list(REPOSITORY.glob("*"))
    return sorted(f for f in set(files) if f.is_file() and f.match(pattern))


def names(files: list[Path]) -> list[str]:
    """Return paths as a reader of a failed test wants them."""
    return [str(f.relative_to(REPOSITORY)) for f in files]


def text_of(file: Path) -> str:
    """Return a file's text; nothing for a binary file."""
    data = file.read_bytes()
    return "" if b"\0" in data else data.decode(errors="replace")


def test_no_module_is_named_after_a_library_or_a_standard_module() -> None:
    taken = set(sys.stdlib_module_names) | set(importlib.metadata.packages_distributions())
    taken -= {*PACKAGES, "benchmarks", "examples", "tests", "__init__", "__main__"}
    modules = [f for f in tracked("*.py") if "tests" not in f.relative_to(REPOSITORY).parts]

    assert names([f for f in modules if f.stem in taken]) == []


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "common", "helpers", "misc"}

    assert names([f for f in tracked("*.py") if f.stem in drawers]) == []


def test_no_module_is_longer_than_the_ceiling() -> None:
    lines = {f: len(f.read_text().splitlines()) for f in tracked("*.py")}

    assert {n: lines[f] for f in lines for n in names([f]) if lines[f] > LINE_CEILING} == {}


def test_every_module_says_what_it_is() -> None:
    modules = [f for f in tracked("*.py") if f.read_text().strip()]

    assert names([f for f in modules if not f.read_text().startswith(('"""', 'r"""'))]) == []


def test_tests_hold_no_init_file() -> None:
    assert names([f for f in tracked("__init__.py") if REPOSITORY / "tests" in f.parents]) == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|NotImplemented" r"Error)\b")
    code = [f for p in ("*.py", "*.sh", "*.toml", "Makefile") for f in tracked(p)]

    assert names([f for f in code if marks.search(f.read_text())]) == []


def test_no_file_names_a_machine_or_a_package_index() -> None:
    # Split so that this file does not match itself.
    private = re.compile(r"/ro" r"ot/|/wo" r"rk/main|/ho" r"me/\w+/|/Us" r"ers/\w+/|/opt/py" r"pi")
    index = re.compile(r"(extra-)?index-" r"url|find-" r"links|file:" r"///|pypi\." r"org/simple")
    files = [f for f in tracked() if REPOSITORY / "examples" / "traces" not in f.parents]

    assert (
        names([f for f in files if private.search(text := text_of(f)) or index.search(text)]) == []
    )


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True)

    assert [t for t in HELP_TARGETS if not re.search(rf"make {t}\s+\S", done.stdout)] == []


def test_every_declared_dependency_is_pinned() -> None:
    pins = re.findall(r"^([A-Za-z0-9._-]+)==", (REPOSITORY / "constraints.txt").read_text(), re.M)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["test"], *extras["cluster"]]

    assert {_name(d) for d in declared} - {_name(p) for p in pins} == {"mol-loop"}


def test_pins_carry_no_build_of_one_machine() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()

    assert [x for x in lines if not x.startswith("#") and not re.fullmatch(r"[^+@/ ]+", x)] == []


def test_the_changelog_says_what_changed() -> None:
    assert re.search(r"^- \S", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)


def test_the_command_line_loads_no_heavy_library() -> None:
    code = f"import sys, flows.cli; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[ =<>\[;]", requirement)[0]).lower()
