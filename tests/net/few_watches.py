"""Run a command whose epoll_ctl fails with ENOSPC, as it does at the limit fs.epoll.max_user_watches.

Usage: python few_watches.py FD COMMAND...


A seccomp filter makes EPOLL_CTL_ADD fail for file descriptors from FD on. The sysctl would affect the whole machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

EPOLL_CTL = {"x86_64": 233, "aarch64": 21}[platform.machine()]
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_GREATER_OR_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_from(fd: int) -> None:
    """Make epoll_ctl(epfd, EPOLL_CTL_ADD, n, event) fail in this process for n >= *fd*."""
    steps = [
        (LOAD, 0, 0, 0),  # offset of the system call's number in struct seccomp_data
        (JUMP_IF_EQUAL, 0, 5, EPOLL_CTL),
        (LOAD, 0, 0, 24),  # the second argument, op
        (JUMP_IF_EQUAL, 0, 3, 1),  # EPOLL_CTL_ADD
        (LOAD, 0, 0, 32),  # the third, the descriptor
        (JUMP_IF_GREATER_OR_EQUAL, 0, 1, fd),
        (RETURN, 0, 0, ERRNO | errno.ENOSPC),
        (RETURN, 0, 0, ALLOW),
    ]
    program = Program(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    refuse_from(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  the test's own command
