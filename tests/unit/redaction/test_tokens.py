# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of the kernel in text."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.redaction.tokens import KernelText, printable_lengths

_CONSTANTS = (
    b"\0\x012Out of memory!\0\x016INFO: task %s:%d blocked for more than %ld seconds.\n\0\xffab"
    b"\0%sCPU: %d Comm\0"
)
_TEXT = KernelText([b"dentry", b"kmalloc-64"], _CONSTANTS)


def _kept(raw: bytes, text: KernelText = _TEXT) -> list[bytes]:
    kept = text.find(np.frombuffer(raw, np.uint8))
    edges = np.flatnonzero(np.diff(np.pad(kept.astype(np.int8), 1)))
    return [raw[start:end] for start, end in edges.reshape(-1, 2).tolist()]


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (b"dentry", [b"dentry"]),
        (b"/srv/dentry\0", [b"dentry"]),
        (b"kmalloc-64 kmalloc-641", [b"kmalloc-64"]),
        (b"dentry-db", []),
        (b"dentry\xff", []),
        (b"INFO: task db:4711 blocked", [b"INFO", b"task", b"4711", b"blocked"]),
        (b"CPU: 1 Comm: secret", [b"CPU", b"1", b"Comm"]),
        (b"ab", []),  # too short for a constant
        (b"12345678 1234567", [b"1234567"]),
        (b"10.0.0.1", []),
        (b"", []),
        (b"MAC 52:54:00:12:34:56 dentry", [b"dentry"]),
        (b"10:00:00:90:fa:be:ad:de", []),
        (b"4111 1111 1111 1111", []),
        (b"2001:4860:4860::8888", []),
        (b"Out of memory! do_oops+0x1f/0x12345678 0x 0xfg", [*b"Out of memory 0x1f".split()]),
        (b"fe80::1 dentry::1", [b"dentry", b"1"]),
        (b"2:0:0:1 12:34:56 0000:00:1f", [*b"2 0 0 1 12 34 56 0000 00".split()]),
        (b"kworker/1:2:4711 1 2", [*b"1 2 4711 1 2".split()]),
        (b"1", [b"1"]),
        (b"36s 12kB 50% 9. 1.2.3 12x 4.745s", [*b"36s 12kB 50% 9. 4.745s".split()]),
        (b"48.137154 24.12 1999.95 0xdeadbee 0x1f", []),
    ],
)
def test_words_of_the_kernel_are_whole_tokens(raw: bytes, kept: list[bytes]) -> None:
    assert _kept(raw) == kept


_BANNER = b"Linux version 6.1.0-jx (jmbl@qz) (gcc (Debian 12.2.0-14) 12.2.0) #7 SMP Tue Mar 3\n"
_BUILT = KernelText(
    [b"dentry"],
    b"\0".join(
        [
            b"",
            _BANNER,
            b"%s version %s (jmbl@qz) (gcc (Debian 12.2.0-14) 12.2.0) %s\n",
            b"pam: session for %s from %s, uid=%d\n",
            b"/home/jmbl/src/fs/ext4/inode.c",
            b"fs/xfs/inode.c",
            b"assertion at ../../home/jmbl/secret.h:7\n",
            b"cannot open /proc/cpuinfo, see Documentation/admin-guide/sysctl.rst\n",
            b"library/core/num.rs/home/jmbl/.rustup/lib/cell.rsattempt to",
            b"\x0c\x0bJames Blonk1\x0b0\x09\x06\x03U",
            b"",
        ]
    ),
)
"""Words of a kernel built by ``jmbl`` on ``qz``, in a directory, with a certificate."""


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (b"jmbl@qz jmbl qz", []),
        (b"pam: session for jmbl from qz, uid=7", [*b"pam session for from uid 7".split()]),
        (b"home jmbl src rustup James Blonk secret.h", [b"secret.h"]),
        (b"/home/jmbl/src/fs/ext4/inode.c", [b"fs", b"inode.c"]),
        (b"fs/xfs/inode.c /proc/cpuinfo", [*b"fs xfs inode.c proc cpuinfo".split()]),
        (b"Documentation/admin-guide", [b"Documentation", b"admin-guide"]),
        (
            _BANNER,
            [*b"Linux version 6.1.0-jx gcc Debian 12.2.0-14 12.2.0 #7 SMP Tue Mar 3".split()],
        ),
        # In its place, also a builder that is a word of the kernel.
        (b"Linux version 6.1.0 (dentry@session) (gcc", [*b"Linux version gcc".split()]),
        (b"dentry@session", [b"dentry", b"session"]),
    ],
)
def test_names_of_a_build_are_no_words_of_the_kernel(raw: bytes, kept: list[bytes]) -> None:
    assert _kept(raw, _BUILT) == kept


def test_a_builder_is_recognized_by_the_text_around() -> None:
    """In the constants of the kernel, only the builder is not kept."""
    raw = np.frombuffer(b"Linux version 6.1.0 (dentry@session) (gcc", np.uint8)
    alone = np.where(np.isin(np.arange(len(raw)), range(21, 35)), raw, np.uint8(0))
    assert _BUILT.find(alone).sum() == len("dentrysession")
    assert not _BUILT.find(alone, raw).any()


def test_no_constants() -> None:
    nothing = KernelText([], b"")
    assert not nothing.find(np.frombuffer(b"\0dentry\0", np.uint8)).any()


def test_lengths_of_printable_runs() -> None:
    raw = np.frombuffer(b"ab\0cde\x80f", np.uint8)
    is_text = np.zeros(len(raw), np.bool_)
    assert printable_lengths(raw, is_text).tolist() == [2, 2, 0, 3, 3, 3, 0, 1]
    assert printable_lengths(raw, ~is_text).tolist() == [2, 2, 0, 5, 5, 5, 5, 5]
    assert len(printable_lengths(raw[:0], is_text[:0])) == 0
