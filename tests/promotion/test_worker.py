"""Proves that a checker in an environment of its own that hangs or dies costs one item only.

The script is made here and runs in this Python, in the place of a package's checker; marked tests
have the real ones.
"""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from promotion.suites.external.bfcl_suite import _check
from promotion.suites.external.worker import Worker, WorkerFailed
from serving.records import Message

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, subprocess, sys, time
FOREIGN = {"words": b"the grader says hello", "number": b"7", "bytes": b"\\xff"}
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    do = json.loads(line)["id"]
    if do == "hang":
        child = subprocess.Popen(["sleep", "600"])
        open(NOTES, "w").write(str(child.pid))
        time.sleep(600)
    if do == "slow":
        time.sleep(1.5)
    if do == "die":
        raise SystemExit("the disk is full")
    if do == "half":
        os.write(1, b'{"valid": ')
        os._exit(0)
    if do in FOREIGN:
        os.write(1, FOREIGN[do] + b"\\n")
    reply = {"failed": "no such item"} if do == "fail" else {"valid": True, "pid": os.getpid()}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "venv" / "installed").touch()
    return tmp_path / "venv"


@pytest.fixture
def worker(venv: Path, tmp_path: Path) -> Iterator[Worker]:
    script = tmp_path / "checker.py"
    script.write_text(SCRIPT.replace("NOTES", repr(str(tmp_path / "child"))))
    worker = Worker(venv, script, {}, "make it")
    yield worker
    worker.close()


def ask(worker: Worker, name: str, limit_s: float = 60.0) -> int:
    pid = worker.ask({"id": name}, limit_s)["pid"]
    assert isinstance(pid, int)
    return pid


def gone(pid: str, limit_s: float = 10.0) -> bool:
    stat = Path("/proc", pid, "stat")
    for _ in range(round(limit_s * 10)):
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_one_that_hangs_is_ended_with_what_it_started_and_started_anew(
    worker: Worker, tmp_path: Path
) -> None:
    first = ask(worker, "a")
    assert ask(worker, "b") == first
    folder = worker._folder

    with pytest.raises(WorkerFailed, match="checker gave no reply in 5 s and was ended"):
        ask(worker, "hang", 5.0)  # in which it notes its child

    assert gone((tmp_path / "child").read_text())
    assert not Path("/proc", str(first)).exists()
    assert not folder.exists()
    assert ask(worker, "c") != first


@pytest.mark.parametrize(
    ("name", "why"), [("die", "the disk is full"), ("half", "it said nothing")]
)
def test_one_that_ends_says_what_was_wrong_and_is_started_anew(
    worker: Worker, name: str, why: str
) -> None:
    first = ask(worker, "a")

    with pytest.raises(WorkerFailed, match=f"checker ended: {why}"):
        ask(worker, name)

    assert ask(worker, "b") != first


@pytest.mark.parametrize("name", ["words", "number", "bytes"])
def test_a_line_that_is_no_reply_does_not_put_off_all_that_follow(
    worker: Worker, name: str
) -> None:
    first = ask(worker, "a")

    with pytest.raises(WorkerFailed, match="checker said what is no reply, and was ended: b'"):
        ask(worker, name)

    assert not Path("/proc", str(first)).exists()
    with pytest.raises(WorkerFailed, match="no such item"):
        ask(worker, "fail")
    assert ask(worker, "b") != first


class SlowTimer(threading.Timer):
    """One that the machine lets go on only some time after it ran out."""

    def run(self) -> None:
        if not self.finished.wait(self.interval):
            time.sleep(2.0)
            self.function(*self.args, **self.kwargs)


def test_a_reply_that_comes_while_the_script_is_being_ended_does_not_count(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(worker, "a")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Timer", SlowTimer)
        with pytest.raises(WorkerFailed, match="gave no reply in 1 s and was ended"):
            ask(worker, "slow", 1.0)

    assert ask(worker, "b") != first


def test_one_that_says_that_it_could_not_goes_on(worker: Worker) -> None:
    first = ask(worker, "a")

    with pytest.raises(WorkerFailed, match="checker: no such item"):
        ask(worker, "fail")

    assert ask(worker, "b") == first


def test_an_item_whose_checker_hangs_is_not_judged_and_says_why(worker: Worker) -> None:
    answer = Message(role="assistant", content="x")

    hung = _check(answer, worker=worker, limit_s=0.5, name="hang")
    next_one = _check(answer, worker=worker, limit_s=60.0, name="simple_1")

    assert (hung.passed, hung.value) == (None, None)
    assert hung.detail == "hang: checker gave no reply in 0.5 s and was ended"
    assert next_one.passed is True


def test_one_that_never_replies_is_not_started_for_every_item(worker: Worker) -> None:
    for _ in range(4):
        with pytest.raises(WorkerFailed, match="the disk is full"):
            ask(worker, "die")
    ask(worker, "a")  # a reply, and all begins anew
    for _ in range(5):
        with pytest.raises(WorkerFailed, match="the disk is full"):
            ask(worker, "die")

    with pytest.raises(WorkerFailed, match="gave no reply 5 times in a row"):
        ask(worker, "a")

    worker._failed_at -= 1000.0  # some time later
    assert ask(worker, "a")


def test_one_whose_packages_do_not_import_says_so(venv: Path, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import no_such_package\n")

    with pytest.raises(WorkerFailed, match="broken ended: ModuleNotFoundError"):
        Worker(venv, script, {}, "make it").ask({}, 60.0)


@pytest.mark.bfcl
@pytest.mark.parametrize("ready", [True, False])
def test_bfcls_own_leaves_nothing_behind_when_the_loop_is_killed(
    tmp_path: Path, ready: bool
) -> None:
    check_killed(tmp_path, "bfcl_worker.py", Path(".venv-bfcl").absolute(), ready)


@pytest.mark.inspect
@pytest.mark.parametrize("ready", [True, False])
def test_inspects_own_leaves_nothing_behind_when_the_loop_is_killed(
    tmp_path: Path, ready: bool
) -> None:
    check_killed(tmp_path, "inspect_worker.py", Path(".venv-inspect").absolute(), ready)


NOISE = """
import os, runpy, sys
from bfcl_eval.eval_checker import eval_runner
grade = eval_runner._evaluate_single_relevance_entry
def loud(*args):
    os.write(1, b"what C code prints")
    os.system("echo what a subprocess prints")
    print("what Python prints")
    return grade(*args)
eval_runner._evaluate_single_relevance_entry = loud
runpy.run_path(sys.argv[-1], run_name="__main__")
"""


@pytest.mark.bfcl
def test_what_bfcls_checks_print_is_no_reply(tmp_path: Path) -> None:
    python, program = tmp_path / "venv" / "bin" / "python", tmp_path / "loud.py"
    python.parent.mkdir(parents=True)
    (tmp_path / "venv" / "installed").touch()
    program.write_text(NOISE)
    real = Path(".venv-bfcl", "bin", "python").absolute()
    python.write_text(f'#!/bin/sh\nexec "{real}" -I "{program}" "$2"\n')
    python.chmod(0o755)
    script = ROOT / "promotion" / "suites" / "external" / "bfcl_worker.py"
    worker = Worker(
        tmp_path / "venv", script, {"BFCL_PROJECT_ROOT": ".", "OPENAI_API_KEY": "x"}, ""
    )

    said = [
        worker.ask({"do": "grade", "id": "irrelevance_1", "result": result}, 120.0)["valid"]
        for result in ("None fits.", [{"f": "{}"}], "No.")
    ]

    words = (worker._folder / "stderr").read_text()
    worker.close()
    assert said == [True, False, True]
    assert [words.count(f"what {it} prints") for it in ("C code", "a subprocess", "Python")] == [
        3, 3, 3,
    ]  # fmt: skip


def check_killed(tmp_path: Path, script: str, venv: Path, ready: bool) -> None:
    """Kill whoever asks once the script is ready, or while it imports what it needs."""
    program = textwrap.dedent(f"""
        import threading, time
        from pathlib import Path
        from promotion.suites.external.worker import Worker
        environment = {{"BFCL_PROJECT_ROOT": ".", "OPENAI_API_KEY": "unused"}}
        script = Path({str(ROOT)!r}, "promotion", "suites", "external", {script!r})
        worker = Worker(Path({str(venv)!r}), script, environment, "make it")
        starting = threading.Thread(target=worker._start, daemon=True)
        starting.start()
        while worker._process is None or {ready} and starting.is_alive():
            time.sleep(0.01)
        assert starting.is_alive() is not {ready}
        print(worker._process.pid, flush=True)
        time.sleep(600)
    """)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    ) as loop:  # fmt: skip
        assert loop.stdout is not None
        pid = int(loop.stdout.readline())
        assert [path.name[:10] for path in temporary.iterdir()] == ["mol-suite-"]
        loop.kill()

    assert gone(str(pid), 120.0)
    assert not list(temporary.iterdir())
