# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs in a guest: loads a crash kernel with the system call, as kexec does.

``kexec.py KERNEL INITRD COMMAND-LINE``
"""

from __future__ import annotations

import ctypes
import os
import sys

_KEXEC_FILE_LOAD = 320
"""Number of the system call on x86-64."""
_ON_CRASH = 2


def _main(kernel: str, initrd: str, line: str) -> None:
    files = [os.open(path, os.O_RDONLY) for path in (kernel, initrd)]
    text = line.encode() + b"\0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_KEXEC_FILE_LOAD, *files, ctypes.c_ulong(len(text)), text, _ON_CRASH):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    _main(*sys.argv[1:])
