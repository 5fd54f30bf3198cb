# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every analysis is given."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable

import drgn
import pytest

from kcensus import cli
from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.engine.slub.percpu import node_ids
from kcensus.kernel.kernel import Kernel
from kcensus.reports import report
from kcensus.results import Answer
from kcensus.sources import faults, open_target
from kcensus.sources.model import Target
from tests.running import analysis_of, on, recorded_analyses
from tests.unit.capsules import target_of
from tests.unit.fakekernel import DIRECT_MAP, FakeKernel
from tests.unit.synthetic import ANALYSIS

pytestmark = pytest.mark.ends


class Modules:
    def need_modules(self, *names: str) -> list[str]:
        return [f"install the debug info of {name}" for name in names if name == "dm_mod"]


def target(modules: Modules | None = None) -> Target:
    prog = drgn.Program()
    return Target(prog, "x", "vmcore", "synthetic", False, "6.1", True, False, modules)  # type: ignore[arg-type]


def test_debug_info_that_is_missing_is_a_gap_of_every_result() -> None:
    analysis = dataclasses.replace(ANALYSIS, modules=("dm_mod", "dm_snapshot"))
    gap = Context.of(target(Modules())).run(analysis).gaps[0]
    assert gap.reason == "install the debug info of dm_mod"


def test_no_modules_are_asked_for_when_none_are_declared() -> None:
    class Refusing(Modules):
        def need_modules(self, *names: str) -> list[str]:
            raise AssertionError(names)

    assert len(Context.of(target(Refusing())).run(ANALYSIS).gaps) == 1


def test_a_model_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["list-lru", "--what-if", "nodes=2,memcgs=100,mounts=10"]
    assert cli.main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["memcgs"] == 100
    assert cli.main(asked) == 0
    assert "Linux" not in capsys.readouterr().out


def test_a_target_that_is_spelled_is_opened_all_the_same() -> None:
    analysis = dataclasses.replace(ANALYSIS, without_target=("fail",))
    assert analysis.needs_target(None, {"fail": None})
    assert not analysis.needs_target(None, {"fail": "x"})
    assert analysis.needs_target("vmcore", {"fail": "x"})


@pytest.mark.parametrize("name", analyses())
def test_every_table_and_column_explains_itself(name: str) -> None:
    specs = analyses()[name].tables()
    assert len({spec.name for spec in specs}) == len(specs) > 0
    for spec in specs:
        assert spec.title
        assert spec.help.endswith("."), spec.name
        assert set(spec.largest_first) <= set(spec.columns)
        for key, column in spec.columns.items():
            assert column.help.endswith("."), f"{spec.name}.{key}"
            assert "\n" not in column.help
            assert len(column.label.split()) <= 5, f"{spec.name}.{key}"


@pytest.mark.parametrize("name", analyses())
def test_metadata_names_what_there_is(name: str) -> None:
    analysis = analyses()[name]
    try:
        result = Context.of(open_target("sample")).run(analysis)
    except AnalysisError:
        # A capsule may lack what a new analysis reads, until the samples are recorded again.
        assert name not in recorded_analyses()
        return
    assert 1 <= len(analysis.headline) <= 3
    assert set(analysis.headline) <= set(result.summary)
    declared = {spec.name: spec for spec in analysis.tables()}
    assert set(analysis.first_tables) <= set(declared)
    of_memory = [
        each
        for each in analysis.first_tables
        if not each.startswith("trace_") and each != "requests_traced"
    ]
    assert set(of_memory) <= set(result.tables)
    assert [*analysis.first_tables[: len(of_memory)]] == of_memory
    for key, table in result.tables.items():
        assert {*table.columns} <= {*declared[key].columns}
    for key, figure in result.summary.items():
        assert 1 <= len(figure.label.split()) <= 6, key


def test_a_bug_is_not_blamed_on_the_target() -> None:
    def bug(kernel: Kernel) -> Answer:
        return Answer(source=[""][1])

    def lacking(kernel: Kernel) -> Answer:
        kernel.prog["no_such_variable"]
        return Answer()

    context = on(FakeKernel().prog)
    with pytest.raises(IndexError):
        context.run(analysis_of("bug", bug))
    with pytest.raises(AnalysisError, match="no_such_variable"):
        context.run(analysis_of("lacking", lacking))


def test_exchanged_types_are_blamed_on_the_capsule() -> None:
    def confused(kernel: Kernel) -> Answer:
        return Answer(source=str(kernel.prog.type("unsigned long").members))

    vmcore = target_of(FakeKernel())
    with pytest.raises(AttributeError):
        Context.of(vmcore).run(analysis_of("confused", confused))
    capsule = dataclasses.replace(vmcore, recorded_for=("confused",))
    with pytest.raises(AnalysisError, match="in the capsule do not fit confused"):
        Context.of(capsule).run(analysis_of("confused", confused))


def test_a_report_leaves_out_what_a_capsule_was_not_recorded_for() -> None:
    def lacking(kernel: Kernel) -> Answer:
        kernel.prog["no_such_variable"]
        return Answer()

    analysis = analysis_of("lacking", lacking)
    for recorded_for, is_failure in (((), False), (("lacking",), True), (None, True)):
        target = dataclasses.replace(target_of(FakeKernel()), recorded_for=recorded_for)
        made = report(Context.of(target), [analysis])
        assert (set(made.errors) == {"lacking"}) == is_failure
        if not is_failure:
            gaps = [gap.what for gap in made.results["lacking"].gaps]
            assert gaps == ["capsule without this analysis"]
            assert made.findings == []


def test_memory_that_is_missing_is_named() -> None:
    def count(kernel: Kernel) -> Answer:
        return Answer(source=str(node_ids(kernel.prog)))

    k = FakeKernel()
    mask = k.symbols["node_states"][k.prog["N_ONLINE"]].address_
    k.drop(mask)
    physical = mask - DIRECT_MAP
    with pytest.raises(AnalysisError) as caught:
        Context.of(target_of(k)).run(analysis_of("count", count))
    sentence = str(caught.value)
    assert sentence.startswith(f"count needs memory at physical address {physical:#x} ")
    assert "(while reading online_nodes), which is filtered out of the dump; dump " in sentence


def test_sentences_name_the_function_not_the_comprehension() -> None:
    code = """
def dentries(read):
    return [(lambda: read(number))() for number in range(3)]
"""
    module = types.ModuleType("kcensus.kernel.synthetic")
    exec(code, module.__dict__)
    dentries: Callable[..., object] = module.dentries

    def fail(number: int) -> None:
        raise drgn.FaultError("not in the dump", 0xFFFF_8880_0000_0000)

    with pytest.raises(drgn.FaultError) as caught:
        dentries(fail)
    assert "(while reading dentries)" in faults.sentence(caught.value, "slab")


def test_every_reason_has_a_remedy() -> None:
    for why in faults.REASONS:
        error = drgn.FaultError(why, DIRECT_MAP)
        assert faults.reason(error) == why
        assert faults.sentence(error, "slab").startswith(
            f"slab needs memory at {DIRECT_MAP:#x}, which is {why}; "
        )


def test_on_a_live_kernel_nothing_is_shared_between_analyses() -> None:
    seen: list[Kernel] = []

    def look(kernel: Kernel) -> Answer:
        seen.append(kernel)
        return Answer()

    wanted = [analysis_of("one", look), analysis_of("two", look)]
    for live in (False, True):
        report(on(FakeKernel().prog, live=live), wanted)
    assert seen[0] is seen[1]
    assert len({id(kernel) for kernel in seen}) == 3
