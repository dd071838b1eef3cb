"""Confine a bare interpreter: namespaces where the kernel gives them, else a filter of calls.

In namespaces there is no network, no other process and no file but the interpreter's, read-only,
and an empty folder of limited size. Without them a filter forbids sockets, further processes and
signals, and Landlock the files. A machine that gives neither is refused.
"""

import os
import resource
import sys

from traces.verifiers.sandbox import kernel
from traces.verifiers.sandbox.call_filter import deny_calls, has_filter
from traces.verifiers.sandbox.limits import (
    CPU_LIMIT_S,
    FILE_LIMIT_BYTES,
    FOLDER_FILES_LIMIT,
    FOLDER_LIMIT_BYTES,
    MEMORY_LIMIT_BYTES,
    OPEN_FILES_LIMIT,
    PROCESSES_LIMIT,
)

_SPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
)  # fmt: skip
_WORK = "/tmp"  # noqa: S108 - of the new root
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_FIRST_USER = 1_000_000_000
"""Users from here on own nothing and run nothing else, so that their processes can be counted."""
_LIMITS = {
    resource.RLIMIT_CPU: CPU_LIMIT_S,
    resource.RLIMIT_AS: MEMORY_LIMIT_BYTES,
    resource.RLIMIT_FSIZE: FILE_LIMIT_BYTES,
    resource.RLIMIT_NOFILE: OPEN_FILES_LIMIT,
    resource.RLIMIT_NPROC: PROCESSES_LIMIT,
    resource.RLIMIT_CORE: 0,
}


def leave_the_machine(folder: str) -> int | None:
    """Leave for namespaces of our own; `folder` becomes the root of what can be seen.

    The next child is the first process there. Return the user to run code as, None for the
    present one.

    Raises:
        OSError: if the kernel does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    own = None
    if user == 0:
        # Its processes cannot be counted, so the code runs as nobody else does.
        kernel.unshare(_SPACES)
        own = _FIRST_USER + os.getpid()
    else:
        kernel.unshare(_SPACES | kernel.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    _furnish(folder)
    kernel.change_root(folder)
    kernel.make_read_only("/", beneath=False)
    os.chdir(_WORK)
    return own


def _furnish(root: str) -> None:
    kernel.mount("tmpfs", root, "tmpfs", 0, "mode=755,size=1m")
    for path in _readable():
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
            continue
        _bind(path, root)
        kernel.make_read_only(root + path, beneath=True)
    for path in _DEVICES:
        _bind(path, root)
    os.mkdir(root + _WORK)
    size = f"mode=1777,size={FOLDER_LIMIT_BYTES},nr_inodes={FOLDER_FILES_LIMIT}"
    kernel.mount("tmpfs", root + _WORK, "tmpfs", 0, size)


def _bind(path: str, root: str) -> None:
    target = root + path
    os.makedirs(target if os.path.isdir(path) else os.path.dirname(target), exist_ok=True)
    if not os.path.isdir(path):
        with open(target, "w"):
            pass
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)


def _readable() -> list[str]:
    """Return what the interpreter needs: its prefix and the folders of its libraries."""
    with open("/proc/self/maps") as file:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in file if "/" in line}
    wanted = {sys.base_prefix, sys.base_exec_prefix, "/usr/share/zoneinfo", "/etc/ld.so.cache"}
    wanted |= {os.path.dirname(path) for path in mapped if ".so" in os.path.basename(path)}
    wanted |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64"}
    found: list[str] = []
    for path in sorted(path for path in wanted if os.path.exists(path)):
        real = os.path.realpath(path)
        below = any(real == have or real.startswith(have + "/") for have in found)
        if path != real and path.count("/") == 1:
            found.append(path)  # a link in the root, such as /lib; what it names is here too
        elif not below:
            found.append(real)
    return found


def confine(user: int | None, folder: str | None) -> None:
    """Limit this process and its children for good.

    `user` is whom to run as; `folder`, where there are no namespaces, the one to write in.

    Raises:
        OSError: if the kernel does not allow it.
    """
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.die_with_parent()
    if folder is not None:
        kernel.drop_capabilities()
        kernel.restrict_files([*_readable(), *_DEVICES], folder)
    for limit, value in _LIMITS.items():
        resource.setrlimit(limit, (value, value))
    kernel.drop_capabilities()
    kernel.be_opaque()
    if folder is not None or has_filter():
        deny_calls(alone=folder is not None)
