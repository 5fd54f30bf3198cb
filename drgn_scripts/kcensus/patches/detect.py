# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a kernel has a patch, and how that can be known.

Kernel versions decide nothing: distributions move patches between them in both directions. Only
where a patch leaves no trace in types is the release named, as evidence and not as proof.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from kcensus.patches.model import Detected, Patch, Rule, State, Status
from kcensus.patches.probes import Answer, Prober

_NOT_LACKING = (State.PRESENT, State.SUPERSEDED)


def modules(patches: Mapping[str, Patch]) -> tuple[str, ...]:
    """Kernel modules whose debug info detection needs, in alphabetical order."""
    wanted = {name for patch in patches.values() for name in patch.detection.modules}
    return tuple(sorted(wanted))


def detect(patches: Mapping[str, Patch], prober: Prober, release: str) -> dict[str, Detected]:
    """The state of every patch, by id, in the order of ``patches``.

    :param release: the kernel's release, for what types cannot tell
    """
    found = {
        patch.id: _one(patch, prober, release) for patch in patches.values() if not patch.stages
    }
    return {
        patch.id: _series(patch, found) if patch.stages else found[patch.id]
        for patch in patches.values()
    }


def ask_everything(patches: Mapping[str, Patch], prober: Prober) -> None:
    """Ask whatever any rule may ask, so that a program that is being recorded has the answers."""
    for patch in patches.values():
        for rule in patch.detection.rules:
            for probe in (*rule.has, *rule.lacks):
                prober.ask(probe, patch.detection.modules)
        if patch.validation and patch.validation.switch:
            prober.number(patch.validation.switch)


def _one(patch: Patch, prober: Prober, release: str) -> Detected:
    looked_for: list[str] = []
    for rule in patch.detection.rules:
        answer = _holds(rule, patch, prober)
        if answer.value is None:
            return Detected(patch, State.UNKNOWN, answer.reason)
        if answer.value:
            return Detected(patch, rule.state, _because(rule, answer.reason))
        if rule.state is not State.UNKNOWN:
            looked_for.append(answer.reason)
    if patch.detection.undetectable is None:
        return Detected(patch, State.ABSENT, _list(looked_for))
    return _without_types(patch, release)


def _holds(rule: Rule, patch: Patch, prober: Prober) -> Answer:
    """All that a rule asks for; the first that is not so decides, an unknown one only then."""
    reasons: list[str] = []
    unknown: Answer | None = None
    for probe in (*rule.has, *rule.lacks):
        answer = prober.ask(probe, patch.detection.modules)
        if answer.value is None:
            unknown = unknown or answer
        elif answer.value != (probe in rule.has):
            return Answer(False, answer.reason)
        reasons.append(answer.reason)
    return unknown or Answer(True, _list(reasons))


def _because(rule: Rule, reason: str) -> str:
    parts = [reason]
    if rule.by:
        parts.append(f"{rule.by} took its place")
    if rule.why:
        parts.append(rule.why)
    return "; ".join(parts)


def _list(reasons: list[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


def _without_types(patch: Patch, release: str) -> Detected:
    undetectable = patch.detection.undetectable
    assert undetectable is not None
    if undetectable.carriers:
        if any(fnmatch.fnmatchcase(release, pattern) for pattern in undetectable.carriers):
            reason = f"kernels like {release} may have it; {undetectable.evidence}"
            return Detected(patch, State.UNKNOWN, f"{undetectable.reason}; {reason}")
        known = ", ".join(undetectable.carriers)
        return Detected(
            patch, State.ABSENT, f"only kernels like {known} are known to have it, not {release}"
        )
    if patch.status in (Status.NEVER_MERGED, Status.REVERTED):
        fate = "it was never merged" if patch.status is Status.NEVER_MERGED else "it was reverted"
        return Detected(patch, State.ABSENT, f"{fate}; {undetectable.evidence}")
    return Detected(
        patch, State.UNKNOWN, f"{undetectable.reason}; best evidence: {undetectable.evidence}"
    )


def _series(patch: Patch, found: Mapping[str, Detected]) -> Detected:
    stages = [found[stage.patch] for stage in patch.stages]
    there = [one for one in stages if one.state in _NOT_LACKING]
    absent = [one for one in stages if one.state is State.ABSENT]
    if len(there) == len(stages):
        return Detected(patch, State.PRESENT, f"all of its {len(stages)} stages are there")
    if len(absent) == len(stages):
        return Detected(patch, State.ABSENT, f"none of its {len(stages)} stages is there")
    if there and absent:
        reason = "; ".join(f"{one.patch.id} is {one.state.value}" for one in stages)
        return Detected(patch, State.PARTLY, reason, stage=there[-1].patch.id)
    unknown = next(one for one in stages if one.state is State.UNKNOWN)
    return Detected(patch, State.UNKNOWN, f"{unknown.patch.id}: {unknown.reason}")
