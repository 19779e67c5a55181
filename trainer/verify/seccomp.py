"""Takes nearly every system call away from the calling process, for good (Linux only).

Knows the BPF program of a seccomp filter and the few calls a pure computation needs. Standard
library only: it runs inside the sandbox's worker, which imports nothing of this package.
Source: seccomp(2), linux/bpf_common.h, linux/audit.h, the kernel's syscall tables.
"""

from __future__ import annotations

import ctypes
import platform
import struct

# name -> (x86_64, aarch64); -1 where the architecture has no such call.
ALLOWED_CALLS: dict[str, tuple[int, int]] = {
    "read": (0, 63),
    "close": (3, 57),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "getpid": (39, 172),
    "exit": (60, 93),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "getrandom": (318, 278),
}
WRITE = (1, 64)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _DENY = 0x7FFF0000, 0x80000000, 0x00050001  # deny: errno 1, EPERM
_X32_BIT = 0x40000000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _instruction(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, when_true, when_false, value)


def filter_program(machine: str, writable: int) -> bytes:
    """The filter for a machine: allowed calls pass, write only to descriptor `writable`, every
    other call fails with EPERM, a foreign architecture kills. Raises KeyError for other machines.
    """
    column, architecture = MACHINES[machine]
    calls = [numbers[column] for numbers in ALLOWED_CALLS.values()]
    program = [
        _instruction(_LOAD_WORD, 4),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD_WORD, 0),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _KILL),
    ]
    # Layout behind the jumps: write check (load, compare), deny, allow.
    for index, call in enumerate(calls):
        program.append(_instruction(_JUMP_EQUAL, call, len(calls) - index - 1 + 4, 0))
    program += [
        _instruction(_JUMP_EQUAL, WRITE[column], 0, 2),
        _instruction(_LOAD_WORD, 16),
        _instruction(_JUMP_EQUAL, writable, 1, 0),
        _instruction(_RETURN, _DENY),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


class Lock:
    """The filter, prepared before a fork so that closing it costs two system calls.

    Raises KeyError on an architecture that is not in `MACHINES`.
    """

    def __init__(self, writable: int) -> None:
        code = filter_program(platform.machine(), writable)
        self._buffer = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.addressof(self._buffer))
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def close(self) -> None:
        """Locks this process, for good. Raises OSError when the kernel refuses."""
        for arguments in (
            (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
            (_SET_SECCOMP, _FILTER_MODE, ctypes.byref(self._program), 0, 0),
        ):
            if self._prctl(*arguments) != 0:
                raise OSError(ctypes.get_errno(), "the kernel refused the system call filter")
