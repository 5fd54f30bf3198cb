# SPDX-License-Identifier: LGPL-2.1-or-later
"""Type packs give a program its types, and are refused where they do not belong."""

from __future__ import annotations

from pathlib import Path

import drgn
import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.samples import DIRECTORY
from kcensus.sources import open_target
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.debuginfo.lookups import lookups
from kcensus.sources.debuginfo.packs.choice import split_packs, use_pack
from kcensus.sources.debuginfo.packs.file import Pack, encode
from kcensus.sources.debuginfo.packs.loaded import NotInPack, PackDebugInfo
from kcensus.sources.debuginfo.packs.modules import module_files
from kcensus.sources.model import Target, TargetError
from kcensus.sources.types.table import BadTypes
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo
from tests.running import document
from tests.unit.capsules import recorded
from tests.unit.fuzzing import add_up
from tests.unit.sources.btf.test_places import elf
from tests.unit.sources.packs.synthetic import (
    BUILD_ID,
    LOW,
    document_of,
    head,
    pack_of,
    program,
    put_together,
    symbols,
    take_apart,
)
from tests.unit.sources.test_open import vmlinux

SEED = 28
MAX_BYTES = 1 << 30


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "good.capsule"
    return recorded(path, list(analyses().values()))


@pytest.fixture
def pack(capsule: Path, tmp_path: Path) -> Path:
    path = tmp_path / f"{BUILD_ID}.kctypes"
    path.write_bytes(pack_of(capsule))
    return path


def loaded(capsule: Path, pack: Path, offset: int = 0) -> drgn.Program:
    prog = program(capsule)
    PackDebugInfo(prog, Pack(pack), offset).register()
    return prog


def test_analyses_answer_with_a_pack_as_with_the_capsule_of_its_types(tmp_path: Path) -> None:
    """The sample has all lookups that slab makes, and its memory."""
    capsule, path = DIRECTORY / "sample.capsule", tmp_path / "pack"
    path.write_bytes(encode(head(), document_of(capsule), {"": symbols()}))
    known, prog = open_target(capsule), program(capsule)
    PackDebugInfo(prog, Pack(path), 0).register()
    by_pack, by_capsule = (
        Target(each, "sample", "vmcore", "ELF", False, known.kernel) for each in (prog, known.prog)
    )
    slab = analyses()["slab"]
    answer = document(Context.of(by_pack, jobs=1).run(slab))
    assert answer == document(Context.of(by_capsule, jobs=1).run(slab))


def test_types_objects_and_symbols_are_found(capsule: Path, pack: Path) -> None:
    prog = loaded(capsule, pack, 0x1000)
    cache = prog.type("struct kmem_cache")
    assert cache.has_member("name")
    assert prog.symbol("first").address == LOW + 0x1010
    assert prog.symbol(LOW + 0x1018).name == "first"
    with pytest.raises(LookupError):
        prog.symbol("no such symbol")


def test_what_a_pack_does_not_know_is_not_absent(capsule: Path, pack: Path) -> None:
    prog = loaded(capsule, pack)
    with pytest.raises(NotInPack, match="pass the vmlinux with -s"):
        prog.type("struct nobody_uses")
    with pytest.raises(NotInPack, match="pass the vmlinux with -s"):
        prog["first"]  # a symbol
    assert issubclass(NotInPack, LookupError)
    assert prog.type("unsigned long").size == 8


def test_a_name_without_a_symbol_is_not_found_as_in_debug_info(capsule: Path, pack: Path) -> None:
    """drgn's helpers try the names of several kernels, and expect these errors."""
    prog = loaded(capsule, pack)
    with pytest.raises(KeyError):
        prog["nobody_uses"]
    for find in (prog.variable, prog.constant, prog.function):
        with pytest.raises(drgn.ObjectNotFoundError):
            find("nobody_uses")


def test_what_an_older_pack_lacks_is_not_absent(capsule: Path, pack: Path) -> None:
    prog = loaded(capsule, pack)
    known = PackDebugInfo.of(prog)
    assert known is not None
    asked = {name for name, _ in known._contents.asked}
    name = min(name for name in lookups().constants if name not in asked)
    with pytest.raises(NotRecorded, match="kcensus types save") as caught:
        prog.constant(name)
    assert not isinstance(caught.value, LookupError)


def test_a_type_that_is_only_declared_has_the_members_of_its_module(
    capsule: Path, tmp_path: Path
) -> None:
    rows = [
        ["struct", "inner", None],
        ["pointer", 0, 8, "little"],
        ["int", "int", 4, "little", True],
    ]
    rows += [["struct", "inner", 4, [["value", 0, 2]]], ["struct", "outer", 8, [["to", 0, 1]]]]
    types = {"": [["struct inner", None], ["struct outer", 4]], "m": [["struct inner", 3]]}
    scopes = [
        {"module": name, "build_id": None, "sections": [], "types": each, "objects": []}
        for name, each in types.items()
    ]
    data = encode(
        head(), {"asked": [], "scopes": scopes, "types": rows}, {"": symbols(), "m": symbols()}
    )
    path = tmp_path / "pack"
    path.write_bytes(data)
    prog = program(capsule)
    info = PackDebugInfo(prog, Pack(path), 0)
    info.register()
    inner = prog.type("struct outer").member("to").type.type
    assert not inner.is_complete()
    with pytest.raises(LookupError):
        prog.type("struct inner")
    info._complete(info._contents.modules["m"])
    assert prog.type("struct outer *").type.member("to").type.type.is_complete() is False
    fresh = program(capsule)
    again = PackDebugInfo(fresh, Pack(path), 0)
    again.register()
    again._complete(again._contents.modules["m"])
    assert fresh.type("struct outer").member("to").type.type.has_member("value")


def _describe(patch: pytest.MonkeyPatch, build_id: str, **symbols: int) -> None:
    """Give dumps a VMCOREINFO."""
    lines = [f"BUILD-ID={build_id}", *(f"SYMBOL({name})={at:x}" for name, at in symbols.items())]
    info = Vmcoreinfo("".join(f"{line}\n" for line in lines).encode())
    patch.setattr("kcensus.sources.debuginfo.packs.choice.vmcoreinfo_of", lambda _: info)


def test_the_pack_of_a_dump_is_found_by_its_build_id(capsule: Path, pack: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _describe(patch, BUILD_ID)
        prog = program(capsule)
        info = use_pack(prog, (), [pack.parent])
        assert info is not None
        assert use_pack(prog, [pack], ()) is info
        assert info.places() == [("vmlinux", f"{pack} (type pack)")]
        _describe(patch, "00")
        assert use_pack(program(capsule), (), [pack.parent]) is None
        with pytest.raises(TargetError, match="is a type pack of another kernel"):
            use_pack(program(capsule), [pack], [])
        # One for many kernels is no mistake.
        assert use_pack(program(capsule), (), [], [pack]) is None
        _describe(patch, BUILD_ID)
        assert use_pack(program(capsule), (), [], [pack]) is not None


def test_without_a_build_id_the_banner_must_be_in_memory(capsule: Path, pack: Path) -> None:
    # The synthetic kernel has no such memory.
    with pytest.raises(TargetError, match="VMCOREINFO has no build ID"):
        use_pack(program(capsule), [pack], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcensus.sources.debuginfo.packs.choice.holds", lambda *_: True)
        assert use_pack(program(capsule), (), [pack.parent]) is not None


def test_a_pack_that_contradicts_vmcoreinfo_is_refused(capsule: Path, pack: Path) -> None:
    about, parts = take_apart(pack.read_bytes())
    about["anchors"] = [["_stext", LOW]]
    del about["parts"]
    pack.write_bytes(put_together(about, parts))
    with pytest.MonkeyPatch.context() as patch:
        _describe(patch, BUILD_ID, _stext=LOW + 1)
        with pytest.raises(TargetError, match="_stext is at 0xffffffff81000000 by the type pack"):
            use_pack(program(capsule), [pack], [])


def _damages(good: bytes) -> list[bytes]:
    header, digest = b"XXXX" + good[4:], good[:-1] + bytes([good[-1] ^ 1])
    return [b"", header, good[:40], good[:-1], digest]


@pytest.mark.parametrize("damage", range(5))
def test_a_damaged_pack_is_to_be_copied_again(capsule: Path, pack: Path, damage: int) -> None:
    good = pack.parent / "good" / pack.name
    good.parent.mkdir()
    good.write_bytes(pack.read_bytes())
    pack.write_bytes(_damages(pack.read_bytes())[damage])
    assert split_packs([pack]) == ((pack,), ())
    with pytest.MonkeyPatch.context() as patch:
        _describe(patch, BUILD_ID)
        for given, places in (([pack], []), ([], [pack.parent])):
            with pytest.raises(TargetError, match="copy it again"):
                use_pack(program(capsule), given, places)
        # Of many kernels: the next one serves.
        for shared in (pack, pack.parent):
            unusable: dict[Path, str] = {}
            info = use_pack(program(capsule), [], [], [shared, good.parent], unusable)
            assert info is not None
            assert info.places() == [("vmlinux", f"{good} (type pack)")]
            assert [*unusable] == [pack]
            assert unusable[pack].startswith(f"KCENSUS_SYMBOLS {pack}: ")
        # Without a build ID, the damaged one may be of another kernel.
        _describe(patch, "")
        patch.setattr("kcensus.sources.debuginfo.packs.choice.holds", lambda *_: True)
        places, unusable = [pack.parent, good.parent], {}
        if damage < 4:
            assert use_pack(program(capsule), [], places, [], unusable) is not None
            assert [*unusable] == [pack]
        else:  # its head says that it is of this one
            with pytest.raises(TargetError, match="copy it again"):
                use_pack(program(capsule), [], places, [], unusable)


def test_files_that_are_not_packs_are_refused(pack: Path, tmp_path: Path) -> None:
    good = pack.read_bytes()
    other = tmp_path / "other"
    for data, words in (
        (b"x" * 100, "is not a type pack"),
        (good[:8] + b"\2" + good[9:], "is a type pack of version 2"),
        (good[:40], "is truncated"),
        (good[:-1], "its parts do not fill it"),
        (good[:-1] + bytes([good[-1] ^ 1]), "does not match its digest"),
    ):
        other.write_bytes(data)
        with pytest.raises((TargetError, BadTypes), match=words):
            Pack(other).document()
    other.write_bytes(b"x")
    assert split_packs([pack, other, tmp_path]) == ((pack,), (other, tmp_path))


def test_saving_needs_a_vmlinux(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "vmlinux"
    text.write_text("no ELF file")
    for words, expected in (
        ([text], "is not an ELF file"),
        ([tmp_path / "missing"], "no such file"),
        ([text, tmp_path / "m.ko"], "no such file"),
        ([text, text], "is not a module"),
    ):
        args = ["types", "save", *map(str, words), "-o", str(tmp_path / "out")]
        assert cli.main(args) == 3
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_modules_of_other_releases_are_left_out(tmp_path: Path) -> None:
    def module(path: Path, release: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        info = b"license=GPL\0vermagic=%b SMP mod_unload \0" % release.encode()
        path.write_bytes(elf({".modinfo": info} if release else {".text": b"x"}))
        return path

    kernel = vmlinux(tmp_path / "vmlinux", None, b"Linux version 5.10.0-1 (gcc) #1")
    other = module(tmp_path / "a/dm-mod.ko", "6.1.0-1")
    names = {"dm_mod", "xfs"}
    assert module_files(kernel, [other], names) == (
        [],
        [f"{other}: is for Linux 6.1.0-1, not 5.10.0-1"],
    )
    own = module(tmp_path / "b/dm-mod.ko", "5.10.0-1")
    assert module_files(kernel, [other, own], names) == ([own], [])
    assert module_files(kernel, [tmp_path], names) == ([own], [])
    # A file of debug info, without .modinfo.
    module(tmp_path / "lib/modules/6.1.0-1/xfs.ko", "")
    debug = module(tmp_path / "lib/modules/5.10.0-1/xfs.ko", "")
    assert module_files(kernel, [tmp_path], names) == ([own, debug], [])
    unknown = module(tmp_path / "xfs.ko", "")
    assert module_files(kernel, [unknown], names) == ([unknown], [])


@pytest.mark.slow
def test_corrupt_packs_fail_cleanly(capsule: Path, pytestconfig: pytest.Config) -> None:
    """``pytest --fuzz-cases 2000`` opens as many packs, and reports with a twentieth of them."""
    cases = pytestconfig.getoption("--fuzz-cases")
    module = "tests.unit.sources.packs.fuzz_pack"
    total = add_up(module, SEED, cases, max_bytes=MAX_BYTES, input_=capsule)
    assert total["refused"] > cases // 5
    assert total["opened"] > cases // 10
