"""Proves that packages import only from the layers below them.

Every import statement is parsed, those inside functions and under TYPE_CHECKING
too; nothing is faked. Imports by a computed name are not seen.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ORDER = ("serving", "traces", "curation", "training", "promotion", "flows")
ALLOWED = {package: set(ORDER[: n + 1]) for n, package in enumerate(ORDER)}
ALLOWED["infra"] = {"infra", "serving"}
ALLOWED["flows"].add("infra")
FREE = {"benchmarks", "examples"}
OURS = {*ALLOWED, *FREE}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import; a relative one as `.name`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def violations(repository: Path) -> list[str]:
    """Return `file:line: what` for every import that breaks the order."""
    found = []
    for package, allowed in ALLOWED.items():
        for file in sorted((repository / package).rglob("*.py")):
            for line, name in imported(file.read_text()):
                where = f"{file.relative_to(repository)}:{line}"
                top = name.split(".", 1)[0]
                if not top:
                    found.append(f"{where}: relative import {name!r}")
                elif (top in OURS and top not in allowed) or top == "tests":
                    found.append(f"{where}: {package} must not import {name!r}")
    return found


def test_no_package_imports_from_a_layer_above_it() -> None:
    assert violations(REPOSITORY) == []


def test_every_layer_is_there_to_be_checked() -> None:
    assert [p for p in ALLOWED if not list((REPOSITORY / p).glob("*.py"))] == []


@pytest.mark.parametrize(
    ("package", "statement"),
    [
        ("serving", "import traces.storage.lake"),
        ("serving", "from flows import cli"),
        ("traces", "def late():\n    from curation.build import build"),
        ("traces", "if TYPE_CHECKING:\n    import promotion"),
        ("curation", "import os, training.train"),
        ("training", "from promotion.registry import Registry as R"),
        ("infra", "import traces"),
        ("promotion", "import infra.vllm_server"),
        ("promotion", "import benchmarks.loop"),
        ("flows", "import tests.tiny"),
        ("flows", "from .config import Config"),
    ],
)
def test_a_planted_upward_import_is_found(tmp_path: Path, package: str, statement: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "planted.py").write_text(statement)

    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("package", "statement"),
    [
        ("flows", "import serving, traces, curation, training, promotion, infra"),
        ("traces", "from traces.storage.lake import Lake"),
        ("serving", "import servings, json"),
        ("infra", "from serving.errors import MolError"),
        ("benchmarks", "import flows"),
    ],
)
def test_a_downward_import_is_allowed(tmp_path: Path, package: str, statement: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "planted.py").write_text(statement)

    assert violations(tmp_path) == []
