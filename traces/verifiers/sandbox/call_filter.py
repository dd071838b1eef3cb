"""Which system calls confined code may not make, as a BPF program for seccomp.

In namespaces the filter only keeps code from leaving them. Where there are none it carries the
whole weight: no sockets, no further processes, no signals to others and no say in when they run,
and nothing that outlives the check: no session or group of its own, no memory or messages of
System V. Landlock leaves the modes, owners, times and attributes of all files to be changed, so
calls for that do nothing there, and say that they did.
"""

import errno
import os

from traces.verifiers.sandbox import kernel

# Name: number on x86-64, on aarch64. None where the machine does not have the call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "finit_module": (313, 273), "fsopen": (430, 430), "init_module": (175, 105),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "kexec_load": (246, 104),
    "keyctl": (250, 219), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "request_key": (249, 218),
    "setns": (308, 268), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip
_ALONE: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "ioprio_set": (251, 30),
    "kill": (62, 129), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "mq_open": (240, 180), "msgget": (68, 186), "pidfd_send_signal": (424, 424),
    "process_mrelease": (448, 448), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "semget": (64, 190), "setpgid": (109, 154), "setpriority": (141, 140), "setsid": (112, 157),
    "shmget": (29, 194), "socket": (41, 198), "tkill": (200, 130), "truncate": (76, 45),
    "vfork": (58, None),
}  # fmt: skip
_FEIGNED: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "chown": (92, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54),
    "file_setattr": (469, 469), "fremovexattr": (199, 16), "fsetxattr": (190, 7),
    "futimesat": (261, None), "lchown": (94, None), "lremovexattr": (198, 15),
    "lsetxattr": (189, 6), "removexattr": (197, 14), "removexattrat": (466, 466),
    "setxattr": (188, 5), "setxattrat": (463, 463), "utime": (132, None),
    "utimensat": (280, 88), "utimes": (235, None),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), 435, (234, 131), (302, 261)
_PRCTL, _FCNTL, _IOCTL = (157, 167), (72, 25), (16, 29)
_SET_OWNER = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: whom to signal when a file is ready, and how."""
_SET_OWNER_OR_FLAGS = (0x8901, 0x8902, 0x4008_6602, 0x401C_5820)
"""FIOSETOWN, SIOCSPGRP, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR."""
_CLONE_THREAD = 0x1_0000
_NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
)  # fmt: skip

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in `seccomp_data`; arguments are little-endian, the low half first."""
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_X32 = 0x4000_0000
"""Numbers from here on are the second set that x86-64 has for 32-bit pointers."""

Instruction = tuple[int, int, int, int]


def has_filter() -> bool:
    """Whether the calls of this machine are known."""
    return kernel.machine() in _MACHINES


def deny_calls(*, alone: bool) -> None:
    """Deny this process and its children what they have no business with.

    `alone`: there are no namespaces around it.
    """
    column, machine = _MACHINES[kernel.machine()]
    calls = _CALLS | (_ALONE if alone else {})
    program: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL),
    ]  # fmt: skip
    for numbers in calls.values():
        number = numbers[column]
        if number is not None:
            program += _unless(number, [(_RETURN, 0, 0, _ERROR | errno.EPERM)])
    # Its flags are in memory, out of the filter's sight; callers fall back to clone.
    program += _unless(_CLONE3, [(_RETURN, 0, 0, _ERROR | errno.ENOSYS)])
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    thread = [(_ANY_BIT, 1, 0, _CLONE_THREAD), refuse, allow]
    inside = [(_ANY_BIT, 0, 1, _NAMESPACES), refuse, allow]
    program += _unless(_CLONE[column], [(_LOAD, 0, 0, _FIRST), *(thread if alone else inside)])
    if alone:
        itself = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, os.getpid()), refuse, allow]
        program += _unless(_TGKILL[column], itself)
        itself = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, 0), refuse, allow]
        program += _unless(_PRLIMIT[column], itself)
        # Not to die with the parent; the option is an int, so its low half is all of it.
        dying = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, kernel.PR_SET_PDEATHSIG), refuse, allow]
        program += _unless(_PRCTL[column], dying)
        program += _denied(_FCNTL[column], _SET_OWNER) + _denied(
            _IOCTL[column], _SET_OWNER_OR_FLAGS
        )
        for numbers in _FEIGNED.values():
            number = numbers[column]
            if number is not None:
                program += _unless(number, [(_RETURN, 0, 0, _ERROR)])
    kernel.install_filter([*program, allow])


def _denied(number: int, requests: tuple[int, ...]) -> list[Instruction]:
    """Deny some requests, the second argument, of a call that is many."""
    checks: list[Instruction] = [(_LOAD, 0, 0, _SECOND)]
    for place, request in enumerate(requests, 1):
        checks.append((_EQUAL, len(requests) - place + 1, 0, request))
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    return _unless(number, [*checks, (_RETURN, 0, 0, _ALLOW), refuse])


def _unless(number: int, then: list[Instruction]) -> list[Instruction]:
    """Run `then` for the call of this number, pass it by for another."""
    return [(_EQUAL, 0, len(then), number), *then]
