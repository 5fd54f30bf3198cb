# SPDX-License-Identifier: LGPL-2.1-or-later
"""A decoder for the architectures that have none."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from kcensus.kernel.arch.instructions import Decoder, Instruction, Traced, UndecodableError


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
