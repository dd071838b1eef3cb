"""A task of inspect-ai as a suite: its samples, solver, tools and scorer, our engine's answers.

`file.py@task` is loaded by inspect-ai in an environment of its own
(`infra/install_environment.sh`), and its whole loop runs there; each call of the model comes here
over a pipe and is answered by the engine, embedded or not, under the served name that is scored.
What differs from running it with `inspect eval`: the slot's own system prompt stands in front,
temperature and seed are the gate's, one epoch is run, of several scores the first counts, and a
scorer that has a model judge finds nothing.
"""

import hashlib
from pathlib import Path
from typing import Any

from promotion.suites.external.inspect_runs import (
    INSTALL,
    MAX_ANSWER_TOKENS,
    SCRIPT,
    TaskRuns,
    command,
)
from promotion.suites.external.worker import START_LIMIT_S, Worker, WorkerFailed
from promotion.suites.suite import Item, Played, Suite
from serving.engine import Engine
from serving.errors import MolError
from serving.records import Message, content_id
from serving.slots import Profile
from traces.verifiers.check import Check


class TaskNotFound(MolError, FileNotFoundError):
    """No inspect-ai task is where the settings say."""


def inspect_suite(profile: Profile, slot: str, task: str, venv: Path, limit_s: float) -> Suite:
    """Build the suite `file@task` of `file.py@task`; each sample is a cluster of its own.

    `limit_s` is how long the task may do nothing but think of itself.

    Raises:
        TaskNotFound: if there is no such file.
        EnvironmentMissing: if inspect-ai is not installed in `venv`.
        WorkerFailed: if inspect-ai cannot load the task.
    """
    path, _, name = task.rpartition("@")
    file = Path(path).absolute()
    if not name.isidentifier() or not file.is_file():
        raise TaskNotFound(
            f"No inspect-ai task {task!r}. Name a file and a function in it that is marked as "
            "a task, as in 'tasks/arithmetic.py@sums'."
        )
    found = _list(venv, f"{file}@{name}")
    code = hashlib.sha256(file.read_bytes()).hexdigest()
    known = {str(sample["id"]): sample for sample in found["samples"]}
    runs = TaskRuns(profile, slot, f"{file}@{name}", venv, known, limit_s)
    items = tuple(
        _item(runs, name, sample_id, [found["version"], code, name]) for sample_id in known
    )
    return Suite(f"{file.stem}@{name}", slot, items)


def inspect_version(venv: Path) -> str:
    """Return the name and version of what runs the tasks."""
    command(venv)
    return (venv / "installed").read_text().split()[0].replace("==", " ")


def _item(runs: TaskRuns, name: str, sample_id: str, scorer: list[str]) -> Item:
    sample = runs.samples[sample_id]

    async def play(engine: Engine, model: str, temperature: float, seed: int | None) -> Played:
        return await runs.play(sample_id, engine, model, temperature, seed)

    return Item(
        item_id=content_id(["inspect-ai", *scorer, runs.profile.digest, sample["content"]]),
        cluster=f"inspect-{name}-{sample['content'][:12]}",
        text=sample["text"],
        messages=(Message(role="user", content=sample["text"]),),
        tools=(),
        choices=(),
        max_tokens=MAX_ANSWER_TOKENS,
        check=lambda answer: Check(None, "a sample of inspect-ai is scored where it runs"),
        play=play,
    )


def _list(venv: Path, task: str) -> dict[str, Any]:
    worker = Worker(venv, SCRIPT, {}, INSTALL)
    try:
        return worker.ask({"do": "list", "task": task}, START_LIMIT_S)
    except WorkerFailed as error:
        raise WorkerFailed(f"inspect-ai cannot load {task!r}: {error}") from error
    finally:
        worker.close()
