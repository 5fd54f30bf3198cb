# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detect patches by types, members, symbols, enumerators and parameters in the debug info.

The kernel version does not decide: distributions backport and drop patches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import drgn
from drgn import TypeKind

from kcensus.catalogue.model import HAS_IT, Detected, Patch, Probe, ProbeKind, Rule, State, Status
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.debuginfo.globals import Undeclared

_COMPOUND = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS)


@dataclass(frozen=True)
class Answer:
    """Whether a name exists; None: unknown, with the reason as a clause."""

    value: bool | None
    reason: str


class Prober:
    """Looks up names in one program.

    A name in a module without loaded debug info is unknown: a failed lookup proves nothing.

    :param lacking: one sentence for each module without debug info
    :param types: their sources, :attr:`~kcensus.sources.model.Target.type_sources`
    """

    def __init__(
        self, prog: drgn.Program, lacking: Sequence[str] = (), types: str = "DWARF"
    ) -> None:
        self._prog = prog
        self._lacking = tuple(lacking)
        # In BTF, functions that the compiler has inlined are missing.
        self._knows_inlined = types != "BTF"
        self._knows_inlined_in_modules = "BTF" not in types

    def ask(self, probe: Probe, modules: Sequence[str] = ()) -> Answer:
        """Return whether the name of ``probe`` exists.

        :param modules: the kernel modules that may define it; none if it is always built in
        """
        try:
            return self._ask(probe, modules)
        except NotRecorded:
            return Answer(None, f"this capsule does not record whether {probe} exists")

    def number(self, name: str) -> int | None:
        """Return the value of an integer variable, or None if it cannot be read."""
        try:
            return int(self._prog.variable(name).read_())
        except (LookupError, TypeError, ValueError, drgn.FaultError, NotRecorded):
            return None

    def _ask(self, probe: Probe, modules: Sequence[str]) -> Answer:
        kind, name = probe.kind, probe.name
        if kind in (ProbeKind.TYPE, ProbeKind.MEMBER):
            return self._member(name, modules)
        if kind is ProbeKind.ENUMERATOR:
            exists = _exists(self._prog.constant, name)
        elif kind is ProbeKind.PARAMETER:
            # module_param() defines a struct kernel_param of this name.
            module, _, name = name.partition(".")
            exists = self._symbol(f"__param_{name}")
            name, modules = f"{name} of {module}", (module, *modules)
        else:
            exists = self._symbol(name)
            known = self._knows_inlined_in_modules if modules else self._knows_inlined
            if not exists and probe.may_be_inlined and not known:
                reason = f"no {kind.value} {name}; it may be inlined, which only the vmlinux tells"
                return Answer(None, reason)
        return self._answer(exists, f"{kind.value} {name}", modules)

    def _member(self, path: str, modules: Sequence[str]) -> Answer:
        name, *members = path.split(".")
        try:
            type_ = self._prog.type(name)
        except (LookupError, SyntaxError):  # the latter for a C keyword
            return self._answer(False, name, modules)
        if not members and not _is_complete(type_):
            return Answer(None, f"{name} is only declared in the debug info, without members")
        reason = f"has {name}"
        for member in members:
            type_ = _target(type_)
            where = type_.type_name()
            if type_.kind not in _COMPOUND:
                return Answer(False, f"{where} has no members")
            if not type_.is_complete():
                return Answer(None, f"{where} is only declared in the debug info, without members")
            if not type_.has_member(member):
                return Answer(False, f"{where} has no {member}")
            type_ = type_.member(member).type
            reason = f"{where} has {member}"
        return Answer(True, reason)

    def _answer(self, exists: bool, name: str, modules: Sequence[str]) -> Answer:
        if exists:
            return Answer(True, f"has {name}")
        if not modules:
            return Answer(False, f"no {name}")
        words = re.compile(rf"\b({'|'.join(map(re.escape, modules))})\b")
        # The sentence in `lacking`, which names the package to install, is reported as a gap.
        is_missing = any(words.search(sentence) for sentence in self._lacking)
        which = " or ".join(dict.fromkeys(modules))
        if is_missing:
            return Answer(None, f"no {name}; {which} is loaded without debug info")
        return Answer(None, f"no {name}; {which} is not loaded, or lacks it")

    def _symbol(self, name: str) -> bool:
        # Inlined functions are only in the debug info; assembly functions only in the symbol table.
        any_object = drgn.FindObjectFlags.ANY
        return _exists(self._prog.object, name, any_object) or _exists(self._prog.symbol, name)


def _exists(look_up: Callable[..., object], *args: object) -> bool:
    try:
        look_up(*args)
    except LookupError:
        return False
    except Undeclared:
        return True  # only its type is unknown
    return True


def _is_complete(type_: drgn.Type) -> bool:
    while type_.kind == TypeKind.TYPEDEF:
        type_ = type_.type
    return type_.kind not in (*_COMPOUND, TypeKind.ENUM) or type_.is_complete()


def _target(type_: drgn.Type) -> drgn.Type:
    while type_.kind in (TypeKind.TYPEDEF, TypeKind.POINTER):
        type_ = type_.type
    return type_


def modules(patches: Mapping[str, Patch]) -> tuple[str, ...]:
    """Return the kernel modules that detection needs debug info of, sorted."""
    return tuple(sorted({name for patch in patches.values() for name in patch.detection.modules}))


def detect(patches: Mapping[str, Patch], prober: Prober) -> dict[str, Detected]:
    """Return the state of every patch, by id, in the order of ``patches``."""
    single = {name: _detect(patch, prober) for name, patch in patches.items() if not patch.stages}
    return {name: single.get(name) or _series(patch, single) for name, patch in patches.items()}


def ask_everything(patches: Mapping[str, Patch], prober: Prober) -> None:
    """Evaluate every probe of every rule, so that a recorder of the program sees all of them."""
    for patch in patches.values():
        for rule in patch.detection.rules:
            for probe in (*rule.has, *rule.lacks):
                prober.ask(probe)
        if patch.validation and patch.validation.switch:
            prober.number(patch.validation.switch)


def _detect(patch: Patch, prober: Prober) -> Detected:
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
    reason, evidence = undetectable.reason, undetectable.evidence
    if patch.status in (Status.NEVER_MERGED, Status.REVERTED):
        return Detected(patch, State.ABSENT, f"{patch.status.value}; {evidence}")
    return Detected(patch, State.UNDETERMINED, f"{reason}; best evidence: {evidence}")


def _evaluate(rule: Rule, patch: Patch, prober: Prober) -> Answer:
    # The first false condition decides; an unknown one does only if none is false.
    modules_ = () if rule.ignores_modules else patch.detection.modules
    answers: list[Answer] = []
    for probe in (*rule.has, *rule.lacks):
        answer = prober.ask(probe, modules_)
        if answer.value is (probe not in rule.has):
            return Answer(False, answer.reason)
        answers.append(answer)
    unknown = (answer for answer in answers if answer.value is None)
    return next(unknown, Answer(True, _list([answer.reason for answer in answers])))


def _list(reasons: list[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


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
