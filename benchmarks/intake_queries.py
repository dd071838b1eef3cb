"""Ten analytics questions over lakes of made-up hops, beside ClickHouse embedded.

The questions are those of `docs/analytics.md`, asked as a user asks them, through the lake's
views; ClickHouse (chdb) reads the same Parquet files. Each side is one process with its own
threads, and answers each question `rounds` times; the first answer is left out. Both must give
the same rows.
"""

import json
import math
import shutil
import statistics
import subprocess
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import intake_clickhouse
from benchmarks.intake_lake import build
from infra.base_model import say_on_stderr
from traces.analytics.questions import QUESTIONS
from traces.storage.lake import Lake

CHDB = Path(".mol/bench/chdb")
"""Where the environment with chdb is made and kept."""
ROUNDS = 6
TABLES = ("hops", "turns", "outcomes", "blame")
SQL = {q.name: q.sql for q in QUESTIONS if q.name in intake_clickhouse.QUERIES}
_DIGITS = 9
"""Significant digits in which floating-point answers must agree."""


def measure(folder: Path, sizes: Sequence[int], python: Path | None) -> dict[str, Any]:
    """Ask at each size; the largest one's figures stand at the top."""
    asked = [_at_size(folder, hops, python) for hops in sizes]
    largest = asked[-1]
    return {
        "query_p50_ms": largest["query_p50_ms"],
        "vs_clickhouse": largest["vs_clickhouse"],
        "queries": asked,
    }


def _at_size(folder: Path, hops: int, python: Path | None) -> dict[str, Any]:
    say_on_stderr(f"Making a lake of {hops:,} hops and asking it ten questions ...")
    home = folder / f"lake-{hops}"
    made = build(home, hops)
    ours = ask_lake(home)
    theirs = ask_clickhouse(home, python) if python is not None else None
    shutil.rmtree(home)
    questions: dict[str, dict[str, Any]] = {}
    for name, (seconds, rows) in ours.items():
        questions[name] = {"p50_ms": _p50_ms(seconds), "rows": len(rows)}
        if theirs is not None:
            other = _p50_ms(theirs[name]["seconds"])
            questions[name] |= {
                "clickhouse_p50_ms": other,
                "vs_clickhouse": round(questions[name]["p50_ms"] / other, 3),
                "same_answer": same_rows(rows, theirs[name]["rows"]),
            }
    together = {
        "query_p50_ms": round(statistics.median(q["p50_ms"] for q in questions.values()), 1),
        "vs_clickhouse": None,
    }
    if theirs is not None:
        together["vs_clickhouse"] = round(
            statistics.median(q["vs_clickhouse"] for q in questions.values()), 3
        )
    return {"hops": made, **together, "questions": questions}


def ask_lake(home: Path) -> dict[str, tuple[list[float], list[tuple[Any, ...]]]]:
    """Return each question's seconds a round and its rows, through the lake's views."""
    answers: dict[str, tuple[list[float], list[tuple[Any, ...]]]] = {}
    with Lake.open(home, read_only=True) as lake:
        for name, sql in SQL.items():
            seconds: list[float] = []
            for _ in range(ROUNDS):
                started = time.perf_counter()
                rows = lake.connection.execute(sql).fetchall()
                seconds.append(time.perf_counter() - started)
            answers[name] = seconds, rows
    return answers


def ask_clickhouse(home: Path, python: Path) -> dict[str, Any]:
    """Return the same of ClickHouse over the lake's Parquet files."""
    data = home.resolve() / "lake" / "data" / "main"
    task = {
        "tables": {name: f"{data}/{name}/**/*.parquet" for name in TABLES},
        "names": list(SQL),
        "rounds": ROUNDS,
    }
    done = subprocess.run(
        [str(python.absolute()), intake_clickhouse.__file__],
        input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def same_rows(ours: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]) -> bool:
    """Say whether two answers agree, row by row; numbers to nine digits, dates as text."""
    return len(ours) == len(theirs) and all(
        len(one) == len(other) and all(map(_same, one, other))
        for one, other in zip(ours, theirs, strict=True)
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float | str):
        return math.isclose(one, float(other), rel_tol=10**-_DIGITS)
    return other is None if one is None else str(one) == str(other)


def install_chdb(folder: Path = CHDB) -> Path | None:
    """Return the Python of an environment with chdb, made if it is not there; None if it cannot."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        say_on_stderr(f"Installing chdb in {str(folder)!r}, once ...")
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        if subprocess.run([*command, "chdb"], check=False).returncode:
            say_on_stderr("chdb could not be installed; ClickHouse is not measured.")
            return None
        (folder / "installed").touch()
    return python


def _p50_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds[1:]) * 1000, 1)
