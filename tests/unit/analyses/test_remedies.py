# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that depend on the distribution of a dump's kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcensus.analyses import remedies
from kcensus.results import Finding, Remedy, Severity
from tests.unit.fakekernel import FakeKernel


@pytest.mark.parametrize(
    ("release", "tool"),
    [
        ("6.1.0-44-amd64", "update-grub"),
        ("5.10.0-43-cloud-amd64", "update-grub"),
        ("6.8.0-45-generic", "update-grub"),
        ("4.18.0-147.el8.x86_64", "grubby"),
        ("5.15.0-209.161.7.2.el9uek.x86_64", "grubby"),
        ("6.12.8-200.fc41.x86_64", "grubby"),
        ("6.1.115-126.197.amzn2023.x86_64", "grubby"),
        ("6.4.0-150600.23.25-default", "pbl"),
        ("4.19.40", ""),
        ("", ""),
        ("6.1.0-$(reboot)-amd64", ""),
    ],
)
def test_a_parameter_is_added_with_the_tool_of_the_distribution(
    release: str, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedies, "kernel_release", lambda prog: release)
    made = remedies.at_boot(FakeKernel().prog, "Turn it off", "a.b=c")
    for command in (made.command, made.undo):
        assert [each for each in ("update-grub", "grubby", "pbl") if each in command] == (
            [tool] if tool else []
        )
    assert ("a.b=c" in made.command) == bool(tool)
    assert "a.b=c" in made.effect


def test_without_a_release_there_is_no_command() -> None:
    made = remedies.at_boot(FakeKernel().prog, "Turn it off", "a=b")
    assert isinstance(made, Remedy)
    assert made.command == made.undo == ""


@pytest.mark.parametrize("modules", [[], ["dm_mod"], ["dm_mod", "dm_multipath"]])
def test_missing_types_come_before_other_advice(modules: list[str]) -> None:
    named = ", ".join(modules)
    asked = Finding(id="x", severity=Severity.NOTICE, title="t", evidence="e", no_remedy="Ask")
    found = remedies.with_types_first(asked, modules)
    assert (named in found.no_remedy, found.no_remedy.endswith("Ask")) == (True, True)
    assert (found == asked) == (not modules)
    # A remedy hides the next step.
    remedy = Remedy(effect="Do", command="do", risk="none")
    found = remedies.with_types_first(replace(asked, no_remedy="", remedies=(remedy,)), modules)
    assert (named in found.evidence, found.no_remedy) == (True, "")
    # The other finding has the next step.
    part = replace(asked, no_remedy="", part_of="y")
    assert remedies.with_types_first(part, modules) == part
