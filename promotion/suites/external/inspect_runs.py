"""Run samples of an inspect-ai task in a process, each call of its model answered by the engine.

Samples that are asked for at the same time run in one process, all at once, so that the engine
can batch what they ask. The process is gone before anybody has a score. One that hangs or dies is
ended with all that it started, and its samples that have no score yet are run again by halves, so
that only what does it is not judged.
"""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promotion.suites.external.missing import python_of
from promotion.suites.external.request import asked
from promotion.suites.external.worker import (
    START_LIMIT_S,
    WorkerFailed,
    environment_in,
    reply_in,
)
from promotion.suites.suite import Played
from serving.engine import ChatRequest, ChatResult, Engine
from serving.errors import MolError
from serving.records import Message
from serving.slots import Profile
from traces.verifiers.check import Check

MAX_ANSWER_TOKENS = 256
"""Where the task sets no limit."""
LINE_LIMIT_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.5
"""How often to look whether a process that says nothing has ended."""
_LAST_WORDS_S = 5.0
"""For the output of a process that was ended to close."""
_GATHER_S = 0.05
"""How long to wait for further samples that are asked for at the same time."""
SCRIPT = Path(__file__).with_name("inspect_worker.py")
INSTALL = "make inspect-install"
_MOST_BROKEN = 16
"""Processes of a run that may break: two samples of 150 that do it are found with fewer."""

Key = tuple[int, str, float]
"""Engine, served name and temperature: what samples of one run share."""


class ProcessBroken(WorkerFailed):
    """A process hung or died; which of its samples did it is not known."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One sample of a run."""

    seed: int | None
    future: asyncio.Future[Played]


_Run = dict[str, _Asked]


@dataclass
class TaskRuns:
    """Puts samples together and runs them."""

    profile: Profile
    slot: str
    task: str
    """`/absolute/file.py@task`."""
    venv: Path
    samples: Mapping[str, Mapping[str, Any]]
    """By id, as the worker lists them."""
    limit_s: float
    """How long a process may say nothing while it waits for no answer."""
    gathering: dict[Key, list[_Run]] = field(default_factory=dict)
    """Runs that have not begun. One has a sample once; asked for twice, it is in two."""
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def play(
        self, sample_id: str, engine: Engine, model: str, temperature: float, seed: int | None
    ) -> Played:
        """Run one sample, together with others if there are any.

        Raises:
            WorkerFailed: if the task cannot be run.
        """
        key = (id(engine), model, temperature)
        gathering = self.gathering.setdefault(key, [])
        run = next((run for run in gathering if sample_id not in run), None)
        if run is None:
            run = {}
            gathering.append(run)
            begun = asyncio.create_task(self._begin(key, run, engine))
            self.running.add(begun)
            begun.add_done_callback(self.running.discard)
        run[sample_id] = _Asked(seed, asyncio.get_running_loop().create_future())
        return await run[sample_id].future

    async def _begin(self, key: Key, run: _Run, engine: Engine) -> None:
        _, model, temperature = key
        played: dict[str, Played] = {}
        problem: Exception = WorkerFailed(f"inspect-ai scored not all samples of {self.task!r}")
        try:
            try:
                await asyncio.sleep(_GATHER_S)
            finally:
                self.gathering[key].remove(run)
            await self._converse_by_halves(run, engine, model, temperature, played)
        except Exception as error:
            problem = error
        finally:
            # Not before the process is gone: whoever asked may end the loop.
            for name, one in run.items():
                if not one.future.done() and name in played:
                    one.future.set_result(played[name])
                elif not one.future.done():
                    one.future.set_exception(problem)

    async def _converse_by_halves(
        self, run: _Run, engine: Engine, model: str, temperature: float, played: dict[str, Played]
    ) -> None:
        """Run samples and fill in `played`: one that breaks its process alone is not judged."""
        parts, broken = [run], 0
        while parts:
            part = parts.pop()
            try:
                await self._converse(part, engine, model, temperature, played)
            except ProcessBroken as problem:
                broken += 1
                left = [name for name in part if name not in played]
                if len(left) > 1 and broken < _MOST_BROKEN:
                    middle = len(left) // 2
                    halves = (left[:middle], left[middle:])
                    parts += [{name: run[name] for name in half} for half in halves]
                else:
                    lost = Played((), Check(None, str(problem)[:160]), 0)
                    played |= dict.fromkeys(left, lost)

    async def _converse(
        self, run: _Run, engine: Engine, model: str, temperature: float, played: dict[str, Played]
    ) -> None:
        """Run samples in a process, answer what their model is asked, and fill in `played`."""
        samples = {name: self.samples[name]["content"] for name in run}
        with tempfile.TemporaryDirectory(prefix="mol-inspect-") as folder:
            process = await _start(self.venv, folder)
            pipe, answers = process.stdin, set[asyncio.Task[None]]()
            assert pipe is not None
            try:
                _send(pipe, {"do": "run", "task": self.task, "samples": samples})
                limit_s = START_LIMIT_S
                while True:
                    said = await self._said(process, folder, answers, limit_s)
                    if "ready" in said:
                        continue
                    limit_s = self.limit_s
                    if "ask" in said:
                        one = run.get(str(said["sample"]))
                        request = self._request(said, model, temperature, one.seed if one else None)
                        answers.add(asyncio.create_task(_answer(engine, request, said, pipe)))
                    elif "scored" in said:
                        played[str(said["scored"])] = _played(said)
                    elif "failed" in said:
                        raise WorkerFailed(f"inspect-ai and {self.task!r}: {said['failed'][:300]}")
                    else:
                        return
            finally:
                for answer in answers:
                    answer.cancel()
                await _end(process)

    async def _said(
        self, process: Process, folder: str, answers: set[asyncio.Task[None]], limit_s: float
    ) -> dict[str, Any]:
        """Return what a process says next.

        Raises:
            ProcessBroken: if it ends, says what is no reply, or says nothing for `limit_s` while it
                waits for no answer.
        """
        assert process.stdout is not None
        now = asyncio.get_running_loop().time
        reading, until = asyncio.ensure_future(process.stdout.readline()), now() + limit_s
        try:
            while not reading.done():
                asked = {answer for answer in answers if not answer.done()}
                done, _ = await asyncio.wait(
                    {reading, *asked}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if done or asked:
                    until = now() + limit_s
                if not done and process.returncode is not None:
                    break  # what it started may still hold its output open
                if now() > until:
                    raise ProcessBroken(
                        f"{self.task!r} said nothing for {limit_s:g} s, waiting for no answer, and "
                        "was ended"
                    )
        finally:
            if reading.cancel():
                await asyncio.wait({reading})  # two may not read at once
        line = b"" if reading.cancelled() else reading.result()
        if not line.endswith(b"\n"):
            raise ProcessBroken(f"inspect-ai and {self.task!r} ended: {_last_words(folder)}")
        said = reply_in(line)
        if said is None:
            raise ProcessBroken(f"{self.task!r} said what is no reply: {line[:100]!r}")
        return said

    def _request(
        self, said: dict[str, Any], model: str, temperature: float, seed: int | None
    ) -> ChatRequest:
        choice = said["tool_choice"]
        options = {"stop": said["stop"]} if said["stop"] else {}
        if said["tools"] and choice not in ("auto", "none"):
            options["tool_choice"] = choice
        messages = [Message.from_openai(raw) for raw in said["messages"]]
        return ChatRequest(
            model=model,
            messages=asked(self.profile, self.slot, messages),
            tools=tuple(said["tools"]),
            max_tokens=said["max_tokens"] or MAX_ANSWER_TOKENS,
            temperature=temperature,
            seed=seed,
            options=options,
        )


def command(venv: Path) -> list[str]:
    """Return how the worker is started.

    Raises:
        EnvironmentMissing: if inspect-ai is not installed in `venv`.
    """
    return [python_of(venv, INSTALL), "-I", str(SCRIPT)]


async def _start(venv: Path, folder: str) -> Process:
    with (Path(folder) / "stderr").open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            *command(venv), stdin=PIPE, stdout=PIPE, stderr=errors, env=environment_in(folder),
            cwd=folder, limit=LINE_LIMIT_BYTES, start_new_session=True,
        )  # fmt: skip


def _send(pipe: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    # Not waited for: who hangs reads nothing, and that it has ended is seen where it is read.
    pipe.write(json.dumps(message).encode() + b"\n")


async def _end(process: Process) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its tools too
    with contextlib.suppress(TimeoutError):
        # What left the process's session is not ended, and may hold its output open.
        await asyncio.wait_for(process.stdout.read(), _LAST_WORDS_S)
    process._transport.close()  # type: ignore[attr-defined]  # nothing public closes its pipes
    await process.wait()


async def _answer(
    engine: Engine, request: ChatRequest, said: dict[str, Any], pipe: asyncio.StreamWriter
) -> None:
    try:
        reply = {"completion": _completion(await engine.chat(request))}
    except MolError as error:
        reply = {"error": str(error)}
    _send(pipe, {"to": said["ask"], **reply})


def _completion(result: ChatResult) -> Any:
    """Return an answer as OpenAI's protocol has it."""
    message = result.message
    return {
        "id": result.response_id,
        "object": "chat.completion",
        "created": 0,
        "model": result.served_name,
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls" if message.tool_calls else result.finish_reason,
                "message": message.to_openai(),
            }
        ],
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.completion_tokens,
            "total_tokens": result.prompt_tokens + result.completion_tokens,
        },
    }


def _played(said: dict[str, Any]) -> Played:
    score, detail = said["score"], str(said["detail"])[:160]
    if score is None:
        check = Check(None, detail)
    elif not 0 <= score <= 1:
        check = Check(None, f"{detail} is no score from 0 to 1")
    else:
        check = Check(score == 1, detail, float(score))
    answers = tuple(Message.from_openai(raw) for raw in said["answers"])
    return Played(answers, check, said["completion_tokens"])


def _last_words(folder: str) -> str:
    lines = (Path(folder) / "stderr").read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
