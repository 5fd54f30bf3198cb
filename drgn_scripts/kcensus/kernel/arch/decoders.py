# SPDX-License-Identifier: LGPL-2.1-or-later
"""The decoders of machine code."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import drgn

from kcensus.kernel.arch.aarch64.decoder import AArch64
from kcensus.kernel.arch.instructions import Decoder, Instruction, Traced, UndecodableError
from kcensus.kernel.arch.x86_64.decoder import X86


class _Unread:
    """Decoder of the other architectures: it knows no instruction."""

    first, per_cpu, veneer = -1, "", 0

    def decode(self, code: bytes, at: int, start: int) -> Instruction:
        raise UndecodableError("code of an architecture without a decoder")

    def calls(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        return iter(())

    def jumps(self, code: bytes, start: int) -> Iterator[tuple[int, int]]:
        return iter(())

    def is_no_try(self, code: bytes) -> bool:
        return False

    def behind(self, code: bytes, start: int) -> int:
        return 0

    def completing(
        self,
        code: bytes,
        start: int,
        object_: int,
        targets: Container[int],
        harmless: Container[int],
        traced: Callable[[int], Traced],
    ) -> set[int] | None:
        return None


UNREAD: Decoder = _Unread()
_DECODERS: dict[drgn.Architecture, Decoder] = {
    drgn.Architecture.X86_64: X86(),
    drgn.Architecture.AARCH64: AArch64(),
}


def decoder_of(platform: drgn.Platform | None) -> Decoder | None:
    """Return the decoder of a program's machine code; None if there is none."""
    return None if platform is None else _DECODERS.get(platform.arch)
