"""Runs in `.venv-inspect`, not here: lists an inspect-ai task's samples, or runs some of them.

JSON lines. The first on standard input is the order; replies come on standard output, after
`{"ready": true}`:

    {"do": "list", "task": "/abs/file.py@task"}
        -> {"version": "...", "samples": [{"id": 1, "text": "...", "content": "sha256..."}]}
    {"do": "run", "task": ..., "samples": {"1": "sha256..."}}
        -> {"ask": 7, "messages": [...], "tools": [...], ...}    answered by {"to": 7, ...}
        -> {"scored": 1, "score": 0.5, ...}                      one a sample
        -> {"end": true}

Solvers, tools and scorers run here, in inspect-ai's own loop; only the model is elsewhere. This
file may import nothing of the project.
"""

# Packages are imported behind the first lines that run.
# ruff: noqa: E402

import asyncio
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

# What packages, their C code and their subprocesses print is no reply: before they are imported,
# standard output becomes standard error, and only `out` is left of it.
out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.stdout = sys.stderr

import inspect_ai
from inspect_ai._eval.loader import load_tasks
from inspect_ai.dataset import Sample
from inspect_ai.hooks import Hooks, SampleEnd, hooks
from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    get_model,
    messages_to_openai,
    model_output_from_openai,
    modelapi,
)
from inspect_ai.model._openai import openai_chat_tool_choice, openai_chat_tools
from inspect_ai.scorer import value_to_float
from inspect_ai.tool import ToolChoice, ToolInfo

MESSAGE_LIMIT = 40
"""Of a sample whose task sets none: a model that only calls tools would not end."""

waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}


class OrderRefused(ValueError):
    """The order cannot be carried out; its text is for the user."""


@modelapi(name="served")
class ServedAPI(ModelAPI):  # type: ignore[misc]  # inspect-ai is not installed here
    """The engine on the other side of the pipe."""

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Ask for one answer."""
        if self.model_name == "grader":
            raise RuntimeError("the scorer asks a model to judge, which no gate may rest on")
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        number = len(waiting) + 1
        waiting[number] = future
        active = sample_active()
        say(
            {
                "ask": number,
                "sample": None if active is None else active.sample.id,
                "messages": await messages_to_openai(input),
                "tools": [] if tool_choice == "none" else openai_chat_tools(tools),
                "tool_choice": openai_chat_tool_choice(tool_choice),
                "max_tokens": config.max_tokens,
                "stop": config.stop_seqs,
            }
        )
        reply = await future
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return await model_output_from_openai(reply["completion"])


@hooks(name="scores", description="Says the score of a sample when it has one.")
class Scores(Hooks):  # type: ignore[misc]  # inspect-ai is not installed here
    """Tells of each sample when it ends: another one may hang."""

    async def on_sample_end(self, data: SampleEnd) -> None:
        """Say its score."""
        say(scored(data.sample))


def main() -> None:
    """Carry out one order."""
    try:
        say({"ready": True})
        line = sys.stdin.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        leave()
        return
    order = json.loads(line)
    threading.Thread(target=listen, daemon=True).start()
    try:
        if order["do"] == "list":
            say(listed(order["task"]))
        else:
            run(order)
    except OrderRefused as error:
        say({"failed": str(error)})
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}"})


def listed(name: str) -> dict[str, Any]:
    """Return the samples of a task."""
    task = load(name)
    return {
        "version": importlib.metadata.version("inspect-ai"),
        "samples": [
            {"id": sample.id, "text": text_of(sample), "content": content_of(sample)}
            for sample in task.dataset
        ],
    }


def load(name: str) -> Any:
    """Return the task `file.py@task`, its samples numbered where they have no ids."""
    found = load_tasks([name])
    if len(found) != 1:
        raise OrderRefused(f"{name} names {len(found)} tasks, not one")
    (task,) = found
    for index, sample in enumerate(task.dataset):
        sample.id = index + 1 if sample.id is None else sample.id
        for sandbox in (task.sandbox, sample.sandbox):
            if sandbox is not None and sandbox.type == "local":
                raise OrderRefused(
                    "its sandbox is 'local', which runs what a model wrote on this machine, "
                    "unconfined; use one that confines, such as 'docker'"
                )
    return task


def run(order: dict[str, Any]) -> None:
    """Run samples through solver and scorer and say their scores."""
    task = load(order["task"])
    wanted = order["samples"]
    now = {str(s.id): content_of(s) for s in task.dataset if str(s.id) in wanted}
    if now != wanted:
        raise OrderRefused("its samples differ from one loading to the next; give it a fixed seed")
    task.dataset = task.dataset.filter(lambda sample: str(sample.id) in wanted)
    logs = inspect_ai.eval(
        task,
        model=get_model("served/model"),
        model_roles={"grader": get_model("served/grader")},
        epochs=1,
        message_limit=task.message_limit or MESSAGE_LIMIT,
        max_samples=len(wanted),
        max_connections=len(wanted),
        fail_on_error=False,
        display="none",
        log_dir=str(Path.cwd() / "logs"),
        log_level="error",
        ctl_server=False,
        score_display=False,
    )
    if logs[0].error is not None:
        raise OrderRefused(logs[0].error.message)
    say({"end": True})


def scored(sample: Any) -> dict[str, Any]:
    """Return what became of one sample; the first of several scores counts."""
    name, score = next(iter((sample.scores or {}).items()), ("", None))
    value, why = None, "no score"
    if sample.error is not None:
        why = sample.error.message
    elif score is not None and isinstance(score.value, (str, int, float, bool)):
        value, why = value_to_float()(score.value), f"{name}: {score.value}"
    elif score is not None:
        why = f"{name} gives several values, of which none is the score"
    answers = [
        {"role": "assistant", "content": message.text, "tool_calls": calls(message)}
        for message in sample.messages
        if isinstance(message, ChatMessageAssistant)
    ]
    return {
        "scored": sample.id,
        "score": value,
        "detail": why,
        "answers": answers,
        "completion_tokens": sum(used.output_tokens for used in sample.model_usage.values()),
    }


def calls(message: ChatMessageAssistant) -> list[dict[str, Any]]:
    """Return a message's tool calls in OpenAI's form."""
    return [
        {"id": call.id, "function": {"name": call.function, "arguments": call.arguments}}
        for call in message.tool_calls or ()
    ]


def text_of(sample: Sample) -> str:
    """Return what the user says in a sample."""
    if isinstance(sample.input, str):
        return sample.input
    return "\n\n".join(message.text for message in sample.input if message.role == "user")


def content_of(sample: Sample) -> str:
    """Return a hash of all that a sample is; messages without the ids they get at random."""
    raw = sample.model_dump(mode="json", exclude={"input"})
    raw["input"] = (
        sample.input
        if isinstance(sample.input, str)
        else [message.model_dump(mode="json", exclude={"id"}) for message in sample.input]
    )
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()


def listen() -> None:
    """Hand answers to those who wait for them; where whoever gives them is gone, end it all."""
    for line in sys.stdin:
        reply = json.loads(line)
        future = waiting[reply["to"]]
        future.get_loop().call_soon_threadsafe(future.set_result, reply)
    leave()


def leave() -> None:
    """Remove the folder made for this process, and end it with all that it started."""
    if "MOL_FOLDER" in os.environ:  # then it leads a session of its own
        shutil.rmtree(os.environ["MOL_FOLDER"], ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


def say(message: dict[str, Any]) -> None:
    """Write one line."""
    out.write(json.dumps(message, ensure_ascii=False) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
