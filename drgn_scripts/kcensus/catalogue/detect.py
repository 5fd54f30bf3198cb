# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detect patches by types, members and symbols in the debug info.

The kernel version does not decide: distributions backport and drop patches. Where a patch leaves
no trace in the debug info, the release counts as evidence, not as proof.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from kcensus.catalogue.model import HAS_IT, Detected, Patch, Rule, State, Status, Undetectable
from kcensus.catalogue.probes import Answer, Prober


def modules(patches: Mapping[str, Patch]) -> tuple[str, ...]:
    """Return the kernel modules whose debug info detection needs, sorted."""
    return tuple(sorted({name for patch in patches.values() for name in patch.detection.modules}))


def detect(patches: Mapping[str, Patch], prober: Prober, release: str) -> dict[str, Detected]:
    """Return the state of every patch, by id, in the order of ``patches``.

    :param release: of the kernel, for patches that leave no trace in the debug info
    """
    single = {
        patch.id: _detect(patch, prober, release) for patch in patches.values() if not patch.stages
    }
    return {
        patch.id: _series(patch, single) if patch.stages else single[patch.id]
        for patch in patches.values()
    }


def ask_everything(patches: Mapping[str, Patch], prober: Prober) -> None:
    """Evaluate every probe of every rule, so that a recorder of the program sees all of them."""
    for patch in patches.values():
        for rule in patch.detection.rules:
            for probe in (*rule.has, *rule.lacks):
                prober.ask(probe, _modules(patch, rule))
        if patch.validation and patch.validation.switch:
            prober.number(patch.validation.switch)


def _detect(patch: Patch, prober: Prober, release: str) -> Detected:
    reasons: list[str] = []
    for rule in patch.detection.rules:
        answer = _evaluate(rule, patch, prober)
        if answer.value is None:
            return Detected(patch, State.UNDETERMINED, answer.reason)
        if answer.value:
            by = f"superseded by {rule.by}" if rule.by else ""
            reason = "; ".join(filter(None, (answer.reason, by, rule.why)))
            return Detected(patch, rule.state, reason)
        if rule.state is not State.UNDETERMINED:
            reasons.append(answer.reason)
    undetectable = patch.detection.undetectable
    if undetectable is None:
        return Detected(patch, State.ABSENT, _list(reasons))
    return Detected(patch, *_by_release(patch.status, undetectable, release))


def _evaluate(rule: Rule, patch: Patch, prober: Prober) -> Answer:
    """Return whether all conditions of a rule hold.

    The first condition that is false decides; an unknown one only if none is false.
    """
    answers: list[Answer] = []
    for probe in (*rule.has, *rule.lacks):
        answer = prober.ask(probe, _modules(patch, rule))
        if answer.value is (probe not in rule.has):
            return Answer(False, answer.reason)
        answers.append(answer)
    unknown = (answer for answer in answers if answer.value is None)
    return next(unknown, Answer(True, _list([answer.reason for answer in answers])))


def _modules(patch: Patch, rule: Rule) -> tuple[str, ...]:
    """Return the modules that may define the names of a rule."""
    return () if rule.ignores_modules else patch.detection.modules


def _list(reasons: list[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


def _by_release(status: Status, undetectable: Undetectable, release: str) -> tuple[State, str]:
    reason, evidence, carriers = undetectable.reason, undetectable.evidence, undetectable.carriers
    if any(fnmatch.fnmatchcase(release, pattern) for pattern in carriers):
        return State.UNDETERMINED, f"{reason}; kernels like {release} may have it; {evidence}"
    if carriers:
        known = ", ".join(carriers)
        return State.ABSENT, f"only kernels like {known} are known to have it, not {release}"
    if status in (Status.NEVER_MERGED, Status.REVERTED):
        return State.ABSENT, f"{status.value}; {evidence}"
    return State.UNDETERMINED, f"{reason}; best evidence: {evidence}"


def _series(patch: Patch, single: Mapping[str, Detected]) -> Detected:
    stages = [single[stage.patch] for stage in patch.stages]
    present = [stage for stage in stages if stage.state in HAS_IT]
    absent = [stage for stage in stages if stage.state is State.ABSENT]
    for state, some in ((State.PRESENT, present), (State.ABSENT, absent)):
        if len(some) == len(stages):
            return Detected(patch, state, f"all {len(stages)} stages are {state.value}")
    if present and absent:
        reason = "; ".join(f"{stage.patch.id} is {stage.state.value}" for stage in stages)
        return Detected(patch, State.PARTIALLY_APPLIED, reason, stage=present[-1].patch.id)
    unknown = next(stage for stage in stages if stage.state is State.UNDETERMINED)
    return Detected(patch, State.UNDETERMINED, f"{unknown.patch.id}: {unknown.reason}")
