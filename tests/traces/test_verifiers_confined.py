"""Proves that code under test does no harm: network, files, processes, time and memory.

Real child processes, confined both ways there are: in namespaces, and by a filter of system
calls with Landlock. Where a machine lacks one of the two its tests are skipped. Nothing is faked.
"""

import os
import resource
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from sandboxed import RIGHT, check, refusal

from traces.verifiers.check import Check
from traces.verifiers.sandbox.judged import confinement


def test_this_machine_confines_code() -> None:
    assert confinement() in ("namespaces", "filter")


REACH = {
    "loopback": "s = socket.socket(); s.settimeout(5); s.connect(('127.0.0.1', PORT))",
    "loopback, IPv6": "socket.create_connection(('::1', PORT), 5)",
    "a name": "socket.getaddrinfo('example.com', 80)",
    "a datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "an abstract name": "socket.socket(socket.AF_UNIX).connect('\\0mol-test-PORT')",
}


@pytest.mark.parametrize("reach", REACH.values(), ids=REACH)
def test_there_is_no_network(reach: str, how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        port = str(server.getsockname()[1])
        local.bind(f"\0mol-test-{port}")
        local.listen()
        server.settimeout(0.05)
        code = (
            "import socket\ndef f(n):\n    " + reach.replace("PORT", port) + "\n    return 'open'"
        )
        tests = "try: f(1)\nexcept OSError: pass\nelse: assert False, 'reached'"

        assert check(code, tests, how=how) == Check(True, "the tests passed")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_what_does_not_end_is_ended(code: str, how: str) -> None:
    started = time.monotonic()

    finding = check(code, how=how, wall_limit_s=1)

    assert finding == Check(False, "did not end within 1 s")
    assert time.monotonic() - started < 10


def test_processor_time_is_limited() -> None:
    assert check("while True: pass", wall_limit_s=30).detail.startswith("ended before its tests")


def test_endless_output_stays_small(how: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = "import os\ndef f(n):\n    while True: print('x' * 100_000); os.write(1, b'x' * 100_000)"

    assert check(code, how=how, wall_limit_s=1).passed is False
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_fork_bomb_is_held(how: str) -> None:
    code = "import os\ndef f(n):\n    made = 0\n    try:\n        while made < 500:\n"
    code += "            if os.fork() == 0: os.read(os.pipe()[0], 1)\n            made += 1\n"
    code += "    except OSError: return made\n    return made"

    assert check(code, "assert f(1) < 16", how=how).passed is True


def test_a_process_that_left_its_session_does_not_survive() -> None:
    mark = f"mol-left-{os.getpid()}"
    code = (
        RIGHT + "import ctypes, os, time\nready = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n"
    )
    code += "    if os.fork(): os._exit(0)\n"
    code += (
        f"    ctypes.CDLL(None).prctl(15, {mark[-15:].encode()!r})\n    os.write(ready[1], b'x')\n"
    )
    code += "    time.sleep(60)\nos.read(ready[0], 1)\n"
    started = time.monotonic()

    assert check(code, how="namespaces").passed
    assert time.monotonic() - started < 9
    assert not _running(mark[-15:])


KEPT = {
    "a session of its own": "setsid()",
    "a group of its own": "setpgid(0, 0)",
    "not to die with its parent": "prctl(1, 0, 0, 0, 0)",
    "memory": "shmget(0, 4096, 0o1600)",
    "a queue": "msgget(0, 0o1600)",
    "a named queue": "syscall(MQ_OPEN, b'mol-test', 0o102, 0o600, 0)",
    "semaphores": "semget(0, 1, 0o1600)",
    "a policy": "sched_setscheduler(0, 0, bytes(4))",
    "a file's length": "truncate(b'x', 0)",
}


@pytest.mark.parametrize("call", KEPT.values(), ids=KEPT)
def test_without_namespaces_nothing_can_outlive_the_check(call: str) -> None:
    if why := refusal("filter"):
        pytest.skip(why)
    queue = "240 if os.uname().machine == 'x86_64' else 180"
    code = f"import ctypes, os\nlibrary = ctypes.CDLL(None, use_errno=True)\nMQ_OPEN = {queue}\n"
    code += f"def f(n): return library.{call}, ctypes.get_errno()"

    assert check(code, "assert f(1) == (-1, 1), f(1)", how="filter").detail == "the tests passed"


SIGNALS = {
    "kill": "os.kill(PID, 9)",
    "owner of a pipe": "fcntl.fcntl(r, fcntl.F_SETOWN, PID)",
    "owner and signal": "fcntl.fcntl(r, fcntl.F_SETOWN, PID); fcntl.fcntl(r, 10, 9)",
    "owner, extended": "fcntl.fcntl(r, 15, struct.pack('ii', 1, PID))",
    "owner by ioctl": "import socket; r, w = (s.detach() for s in socket.socketpair())\n"
    "    fcntl.ioctl(r, 0x8901, struct.pack('i', PID))",
    "group by ioctl": "import socket; r, w = (s.detach() for s in socket.socketpair())\n"
    "    fcntl.ioctl(r, 0x8902, struct.pack('i', PID))",
}


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
def test_no_other_process_can_be_signalled(signal: str, how: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        code = "import fcntl, os, struct\ndef f(n):\n    r, w = os.pipe()\n    "
        code += signal.replace("PID", str(victim.pid))
        code += "\n    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n"
        code += "    os.write(w, b'x')"
        refused = "try: f(1)\nexcept (PermissionError, ProcessLookupError): pass\nelse: assert 0"

        assert check(code, refused, how=how) == Check(True, "the tests passed")
        assert victim.poll() is None
        victim.kill()


CHANGES = (
    "os.chmod(PATH, 0)", "os.utime(PATH, (1, 1))", "os.setxattr(PATH, 'user.x', b'')",
    "os.chown(PATH, 1, 1)", "os.truncate(PATH, 0)", "os.chmod(os.__file__, 0)",
    "os.fchmod(os.open(os.__file__, os.O_RDONLY), 0)",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_a_file_outside_can_be_changed(change: str, how: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    tmp_path.chmod(0o755)
    before, of_library = _kept(kept), os.stat(os.__file__)
    code = f"import os\ndef f(n):\n    {change.replace('PATH', repr(str(kept)))}"

    try:
        check(code, "try: f(1)\nexcept OSError: pass", how=how)
        assert _kept(kept) == before
        assert os.stat(os.__file__).st_mode == of_library.st_mode
    finally:
        if os.stat(os.__file__).st_mode != of_library.st_mode:
            os.chmod(os.__file__, of_library.st_mode)


def _kept(path: Path) -> tuple[object, ...]:
    of = path.stat()
    return of.st_mode, of.st_uid, of.st_size, of.st_mtime_ns, os.listxattr(path)


def test_code_may_copy_files_of_its_own(how: str) -> None:
    code = "import shutil\ndef f(n):\n    open('a', 'w').write('x')\n    shutil.copy2('a', 'b')\n"
    code += "    return open('b').read()"

    assert check(code, "assert f(1) == 'x'", how=how).passed


def _running(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            found += [str(path)] if path.read_text().strip() == name else []
        except OSError:
            continue
    return found


def test_code_sees_nothing_of_ours(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOL_TEST_SECRET", "hush")
    (tmp_path / "secret").write_text("hush")
    tmp_path.chmod(0o755)
    code = f"""
import os, sys
def f(n):
    assert not set(os.environ) - {{'LC_CTYPE'}}, os.environ
    assert os.listdir() == []
    open('new', 'w').write('x')
    for act in (lambda: open({str(tmp_path / "secret")!r}), lambda: os.listdir({str(tmp_path)!r}),
                lambda: os.listdir({str(Path(__file__).parent)!r}), lambda: open('/etc/passwd'),
                lambda: open({str(tmp_path / "made")!r}, 'w'), lambda: os.listdir('/proc/1'),
                lambda: open(os.path.join(os.path.dirname(os.__file__), 'x'), 'w')):
        try: act()
        except OSError: continue
        return 'seen'
    return 'nothing'
"""
    assert check(code, "assert f(1) == 'nothing', f(2)", how=how).detail == "the tests passed"
    assert os.listdir(tmp_path) == ["secret"]


def test_code_leaves_nothing_on_disk(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = RIGHT + "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a', 0)"

    assert check(code, how=how) == Check(True, "the tests passed")
    assert os.listdir(tmp_path) == []


FULL = {"namespaces": "OSError: [Errno 28]", "filter": "wrote more than its folder holds"}


def test_the_folder_has_a_size(how: str) -> None:
    code = "def f(n):\n    for i in range(n): open(f'x{i}', 'w').write('a' * 1_000_000)"
    small = "def f(n):\n    for i in range(n): open(f'x{i}', 'w').close()"

    assert check(code, "f(5)", how=how).passed
    assert check(small, "f(500)", how=how).passed
    for larger, tests in ((code, "f(40)"), (small, "f(1500)")):
        assert check(larger, tests, how=how).detail.startswith(FULL[how])


def test_code_that_fills_the_folder_without_end_is_ended() -> None:
    code = "import itertools, time\ndef f(n):\n    for i in itertools.count():\n"
    code += "        open(f'x{i}', 'w').write('a' * 1_000_000)\n        time.sleep(0.01)"

    assert check(code, how="filter").detail == FULL["filter"]


DEEP = {
    "deep": "for _ in range(990): os.mkdir('d'); os.chdir('d')",
    "deeper than a path is long": "for _ in range(30): os.mkdir('d' * 250); os.chdir('d' * 250)",
    "closed": "os.mkdir('d', 0o300); os.mkdir('d/d'); os.mkdir('d/e', 0)",
}


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_a_folder_however_deep_is_judged_and_removed(
    make: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert check(f"import os\n{make}\ndef f(n): return 0", how=how).passed is False
    assert os.listdir(tmp_path) == []


def test_the_same_code_gives_the_same_order_of_sets() -> None:
    code = "def f(n): return ''.join({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})"

    first, second = (check(code, "raise ValueError(f(1))").detail for _ in range(2))

    assert first == second


def test_checks_run_side_by_side() -> None:
    findings: list[Check] = []
    threads = [threading.Thread(target=lambda: findings.append(check(RIGHT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [finding.passed for finding in findings] == [True] * 4
