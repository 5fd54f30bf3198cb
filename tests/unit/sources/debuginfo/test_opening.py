# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types and symbols in files for many kernels count only if they are of the dump's kernel."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import drgn
import pytest

from kcensus.sources.debuginfo import kallsyms, opening
from kcensus.sources.debuginfo.given import Given
from kcensus.sources.debuginfo.in_memory import InMemory, NotInMemory
from kcensus.sources.debuginfo.loading import held_warning
from kcensus.sources.model import MissingDebugInfo, TargetError
from tests.unit.capsules import target_of
from tests.unit.fakekernel import FakeKernel

_SYMBOL = b"ffffffff81000000 T _stext\n"
_OWN, _OTHER, _LATER = Path("own"), Path("other"), Path("later")


class _Memory(InMemory):
    """Accepts the file ``own``; ``is_whole`` says whether the dump has all."""

    is_whole = True

    def __init__(self, prog: drgn.Program, given: Given, symbols: object = None) -> None:
        if _OTHER in (given.btf, given.symbols):
            raise TargetError(f"{given.name(_OTHER)}: is of another kernel")
        if not self.is_whole and given.symbols is None:
            raise NotInMemory("it has no symbols")
        self.given = given


@pytest.mark.parametrize(
    ("given", "shared", "expected"),
    [
        (Given(), [], Given()),
        (Given(), [Given(symbols=_OTHER)], Given()),
        (Given(), [Given(btf=_OTHER), Given(symbols=_OWN)], Given(symbols=_OWN)),
        (Given(), [Given(symbols=_OTHER), Given(symbols=_OWN)], Given(symbols=_OWN)),
        (Given(), [Given(btf=_OWN), Given(symbols=_OTHER)], Given(btf=_OWN)),
        (Given(symbols=_OWN), [Given(symbols=_LATER)], Given(symbols=_OWN)),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_files_for_many_kernels(
    monkeypatch: pytest.MonkeyPatch,
    is_whole: bool,
    given: Given,
    shared: list[Given],
    expected: Given,
) -> None:
    monkeypatch.setattr(opening, "InMemory", _Memory)
    monkeypatch.setattr(_Memory, "is_whole", is_whole)
    found = opening._in_memory(drgn.Program(), given, shared)
    if not is_whole and expected.symbols is None:
        assert str(found) == "it has no symbols"
    else:
        assert isinstance(found, _Memory)
        assert found.given == expected


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_sentence_about_each_unusable_file(
    monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    monkeypatch.setattr(opening, "InMemory", _Memory)
    monkeypatch.setattr(_Memory, "is_whole", is_whole)
    shared = [
        Given(symbols=_OTHER, shared=frozenset([_OTHER])),
        Given(symbols=_OWN, shared=frozenset([_OWN])),
    ]
    unusable: dict[Path, str] = {}
    opening._in_memory(drgn.Program(), Given(), shared, unusable)
    assert unusable == {_OTHER: f"KCENSUS_SYMBOLS {_OTHER}: is of another kernel"}


def test_unusable_files_for_many_kernels(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("none", "empty", "text", "map", "vmlinux")]
    for path, content in zip(paths[1:], (b"", b"x", _SYMBOL, b"\x7fELF"), strict=True):
        path.write_bytes(content)
    given, others, unusable = opening._split_many(paths, "KCENSUS_SYMBOLS")
    assert given == [Given(symbols=tmp_path / "map")]
    assert others == (tmp_path / "text", tmp_path / "vmlinux")
    assert [*unusable] == paths[:2]
    target = target_of(FakeKernel())
    with pytest.raises(TargetError) as caught:
        opening.load_debug_info(target, (), tuple(paths))
    for name in ("none: no such file", "empty: is empty", "text: is not an ELF file"):
        assert f"KCENSUS_SYMBOLS {tmp_path}/{name}" in str(caught.value)


def test_a_file_for_this_kernel_must_be_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "InMemory", _Memory)
    with pytest.raises(TargetError):
        opening._in_memory(drgn.Program(), Given(symbols=_OTHER), [Given(symbols=_OWN)])


@pytest.mark.parametrize(
    ("missing_end", "is_final", "expected"),
    [
        ("", False, MissingDebugInfo),
        ("lacks its end", True, MissingDebugInfo),
        ("lacks its end", False, TargetError),
    ],
)
def test_a_truncated_dump_needs_its_rest(
    monkeypatch: pytest.MonkeyPatch, missing_end: str, is_final: bool, expected: type
) -> None:
    """A kernel that was built without types needs debug info all the same."""

    def lacking(*_: object) -> NotInMemory:
        return NotInMemory("it was cut off", is_final)

    monkeypatch.setattr(opening, "_in_memory", lacking)
    target = target_of(FakeKernel())
    target.missing_end = missing_end
    with pytest.raises(TargetError) as caught:
        opening.load_debug_info(target, ())
    assert type(caught.value) is expected
    assert ("copy the dump again" in str(caught.value)) == (expected is TargetError)


class _Symbols:
    """The symbols of a kernel without CONFIG_KALLSYMS_ALL."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def address(self, name: str) -> int | None:
        return 0x1000 if name in self._names else None

    def addresses(self, name: str) -> list[int]:
        return [0x1000] if name in self._names else []


@pytest.mark.parametrize("has_btf", [True, False])
def test_a_system_map_helps_only_kernels_with_types(
    monkeypatch: pytest.MonkeyPatch, has_btf: bool
) -> None:
    symbols = _Symbols("schedule", *["btf_vmlinux_init"] * has_btf)
    monkeypatch.setattr(kallsyms, "load", lambda _: symbols)
    with pytest.raises(NotInMemory) as caught:
        InMemory(drgn.Program(), Given())
    assert ("System.map" in str(caught.value)) == has_btf
    assert caught.value.is_final != has_btf


@pytest.mark.parametrize("is_served", [True, False])
def test_drgns_warning_is_shown_only_with_an_error(
    caplog: pytest.LogCaptureFixture, is_served: bool
) -> None:
    logger = logging.getLogger("drgn")
    with contextlib.suppress(TargetError), held_warning():
        logger.warning("%s", "missing debugging symbols for kernel 6.1.0")
        logger.warning("another one")
        if not is_served:
            raise TargetError
    assert [record.getMessage()[:7] for record in caplog.records] == [
        "another",
        *["missing"] * (not is_served),
    ]
    assert logger.filters == []
