"""The areas of a benchmark that has several: each in a module of its own with a `measure`."""

import importlib
import time
from collections.abc import Callable
from typing import Any

from infra.base_model import say_on_stderr
from serving.errors import MolError


def measure_area(module: str, *arguments: Any) -> Any:
    """Return what the `measure` of `benchmarks.<module>` finds, None where it cannot."""

    def run() -> Any:
        return importlib.import_module(f"benchmarks.{module}").measure(*arguments)

    return tried(module, run)


def tried(name: str, work: Callable[[], Any]) -> Any:
    """Return what `work` measures; None, with the reason on stderr, where its data is missing."""
    say_on_stderr(f"{name} ...")
    started = time.monotonic()
    try:
        measured = work()
    except (ImportError, OSError, MolError) as error:
        say_on_stderr(f"{name} is not measured: {error}")
        return None
    say_on_stderr(f"{name}: {time.monotonic() - started:.1f} s")
    return measured
