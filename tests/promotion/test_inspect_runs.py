"""Proves that samples of a task that spoil the talk with its process cost only themselves.

The process is a script made here, in the place of the one that runs inspect-ai: it scores each
sample that it is given, as the real one does, and plays one trick. Marked tests have the real one.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from promotion.suites.external.inspect_runs import TaskRuns
from promotion.suites.suite import Played
from serving.engine import ChatRequest, ChatResult, OnDelta
from serving.slots import load_profile

SCRIPT = """
import json, os, subprocess, sys
def say(message):
    os.write(1, json.dumps(message).encode() + b"\\n")
say({"ready": True})
for name in json.loads(sys.stdin.readline())["samples"]:
    if name == "loud":
        os.write(1, b"a library says hello\\n")
    if name == "mumbling":
        os.write(1, b"\\xff[\\n")
    if name == "leaving":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open(NOTES, "w").write(str(child.pid))
    say({"scored": name, "score": 1.0, "detail": "", "answers": [], "completion_tokens": 0})
say({"end": True})
"""


class Nobody:
    """An engine that is not asked."""

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        raise AssertionError("no sample here asks a model")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    script = tmp_path / "plays_tricks.py"
    script.write_text(SCRIPT.replace("NOTES", repr(str(tmp_path / "child"))))
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    python.chmod(0o755)
    (tmp_path / "venv" / "installed").touch()
    return tmp_path / "venv"


def play(venv: Path, *names: str) -> list[Played]:
    samples = {name: {"content": name} for name in names}
    runs = TaskRuns(load_profile(), "L0", "tricks.py@task", venv, samples, 60.0)

    async def run() -> list[Played]:
        one_each = [runs.play(name, Nobody(), "L0@0", 0.0, 1) for name in names]
        return await asyncio.wait_for(asyncio.gather(*one_each), 60.0)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["loud", "mumbling"])
def test_a_line_that_is_no_reply_costs_the_sample_that_it_came_with(venv: Path, name: str) -> None:
    one, bad, two, three = play(venv, "one", name, "two", "three")

    assert [played.check.value for played in (one, bad, two, three)] == [1.0, None, 1.0, 1.0]
    assert "said what is no reply: b'" in bad.check.detail


def test_a_process_that_left_the_session_and_holds_the_output_holds_up_nobody(
    venv: Path, tmp_path: Path
) -> None:
    one, left = play(venv, "one", "leaving")

    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert [one.check.value, left.check.value] == [1.0, 1.0]
