"""The Linux calls that confinement is made of and Python 3.11 has no names for.

Only the standard library: this runs in a bare interpreter. Numbers and structures are those of
the kernel's headers; a call that fails raises `OSError`.
"""

import ctypes
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_READ_ONLY, _MOUNT_ATTR_NOSUID = 1, 2
PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x2008_0522
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK = 444
_LANDLOCK_READ = 0b1101
"""Execute, read a file, list a folder."""
_LANDLOCK_SCOPES = 0b11
"""No abstract sockets and no signals out of here."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                ("k", ctypes.c_uint32))  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter)))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


def machine() -> str:
    """Name of the processor's kind; those without a name here have no filter."""
    return os.uname().machine


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount something."""
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), "mount")


def make_read_only(path: str, *, beneath: bool) -> None:
    """Make a mount read-only, with those beneath it."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_READ_ONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    flags = _AT_RECURSIVE if beneath else 0
    _syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, ctypes.c_size_t(32),
        name="mount_setattr",
    )  # fmt: skip


def change_root(path: str) -> None:
    """Make a mount point the root and let go of the old one."""
    os.chdir(path)
    _syscall(_SYS_PIVOT_ROOT[machine()], b".", b".", name="pivot_root")
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    _prctl(PR_SET_PDEATHSIG, 9)


def be_opaque() -> None:
    """Let no process of the same user look into this one."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up every capability, and the ways to get one back."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _syscall(_SYS_CAPSET[machine()], header, (ctypes.c_uint32 * 6)(), name="capset")


def install_filter(instructions: list[tuple[int, int, int, int]]) -> None:
    """Filter this process's calls by a BPF program."""
    program = (_Filter * len(instructions))(*(_Filter(*each) for each in instructions))
    whole = _Program(len(instructions), program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole))


def restrict_files(readable: list[str], writable: str) -> None:
    """Leave this process the folders named, by Landlock; and, where it can, no other to signal.

    Raises:
        OSError: where the kernel has no Landlock.
    """
    abi = _syscall(_SYS_LANDLOCK, None, ctypes.c_size_t(0), 1, name="landlock_create_ruleset")
    everything = (1 << {1: 13, 2: 14}.get(abi, 15)) - 1
    scoped = _LANDLOCK_SCOPES if abi >= 6 else 0
    handled = (ctypes.c_uint64 * 3)(everything, 0, scoped)
    size = ctypes.c_size_t(24 if scoped else 8)
    ruleset = _syscall(_SYS_LANDLOCK, handled, size, 0, name="landlock_create_ruleset")
    for path in (*readable, writable):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = everything if path == writable else _LANDLOCK_READ
        allowed &= everything if os.path.isdir(path) else 0b100_0000_0000_0111
        rule = _PathBeneath(allowed, folder)
        _syscall(_SYS_LANDLOCK + 1, ruleset, 1, ctypes.byref(rule), 0, name="landlock_add_rule")
        os.close(folder)
    _syscall(_SYS_LANDLOCK + 2, ruleset, 0, name="landlock_restrict_self")
    os.close(ruleset)


def _prctl(option: int, *values: object) -> None:
    padded = (*values, 0, 0, 0)[:4]
    numbers = [ctypes.c_ulong(v) if isinstance(v, int) else v for v in padded]
    _checked(_libc.prctl(option, *numbers), "prctl")


def _syscall(number: int, *values: object, name: str) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *values), name)


def _checked(result: int, name: str) -> int:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return int(result)
