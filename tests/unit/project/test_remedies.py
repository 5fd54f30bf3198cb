# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each command that a finding about waits advises was tried in a guest, or the reason is here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kcensus
from tests.lab import scenario

_PACKAGE = Path(kcensus.__file__).parent
_PLACES = "kernel/waiting", "kernel/net", "analyses/waits"


def _texts(node: ast.expr, function: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression may have, with ``{}`` for what is put in."""
    match node:
        case ast.Constant(value=str(text)):
            yield from [text] if text else []
        case ast.JoinedStr(values=values):
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else "{}" for each in values
            )
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body, function)
            yield from _texts(orelse, function)
        case ast.BinOp(left=left):
            yield from _texts(left, function)
        case ast.GeneratorExp(elt=element):
            yield from _texts(element, function)
        case ast.Call(func=ast.Attribute(attr="join"), args=[several]):
            yield from _texts(several, function)
        case ast.Call(func=ast.Name(id=name)):
            yield f"{name}()"
        case ast.Name(id=name):
            for each in ast.walk(function):
                if isinstance(each, ast.Assign):
                    targets = [own for target in each.targets for own in ast.walk(target)]
                    if any(isinstance(own, ast.Name) and own.id == name for own in targets):
                        yield from _texts(each.value, function)
        case _:
            yield ast.unparse(node)


class _Trial(NamedTuple):
    """A trial of a scenario, and the command there as a regular expression."""

    scenario: str
    name: str
    command: str


_REMEDIES, _STACKED, _STOPPED = "waits-remedies", "waits-stacked", "waits-stopped"
_KILL = r"kill -KILL \$\{each#/proc/\}"
_TRIED = {
    "analyses/waits/findings/busy.py": {
        "chrt -o -p 0 {}": _Trial("waits-priority", "lowered", r"chrt -o -p 0 \$"),
        "kill -KILL {}": _Trial(_REMEDIES, "killed", _KILL),
    },
    "analyses/waits/findings/remedies.py": {
        # `waits-mount` has that of a mount in progress.
        "kill -KILL {}": _Trial(_REMEDIES, "killed", _KILL),
        "kill -CONT {}": _Trial(_STOPPED, "continue", r"kill -CONT \$"),
        "kill {}; sleep 1; kill -CONT ": _Trial(_STOPPED, "continue", r"tracer\) kill \$"),
        'echo THAWED > "/sys/fs/cgroup/freezer{}/freezer.state"': _Trial(
            _STOPPED, "continue", r"echo THAWED > \S+/freezer\.state"
        ),
    },
    "kernel/net/unanswered.py": {
        "check()": _Trial(
            _REMEDIES, "connected", r"timeout 5 bash -c '</dev/tcp/.*' && echo connects \|\| echo"
        ),
        "umount --force --no-canonicalize {}": _Trial(
            "waits-servers", "aborted", r"umount --force --no-canonicalize \$m"
        ),
    },
    "kernel/waiting/finders/copied/mirrors.py": {
        "dmsetup load {} --table '0 {} linear {} {}' && dmsetup suspend --noflush --nolockfs {} && "
        "dmsetup resume {}": _Trial(
            "waits-mirror", "replaced", r"dmsetup load .* linear .* --noflush --nolockfs .* resume"
        )
    },
    "kernel/waiting/finders/events/fuse.py": {
        "echo 1 > {}": _Trial(_REMEDIES, "aborted", r"echo 1 > /sys/fs/fuse/connections/\S+/abort")
    },
    "kernel/waiting/finders/limits/io_cost.py": {
        "echo '{} 10000' > {}": _Trial(_REMEDIES, "heavier", r"echo \"\$d 10000\" > \S+/io\.weight")
    },
    "kernel/waiting/finders/limits/io_max.py": {
        "echo '{} {}' > {}": _Trial("waits-writeback", "lifted", r"echo '1:0 rbps=max .*io\.max"),
        "echo '{} 0' > {}": _Trial(
            "waits-cgroup1", "lifted", r"echo '1:0 0' > \S+\.read_bps_device"
        ),
    },
    "kernel/waiting/finders/locks/frozen.py": {
        "fsfreeze --unfreeze {}": _Trial(_STACKED, "resumed", r"fsfreeze --unfreeze /srv")
    },
    "kernel/waiting/finders/mapped/delay.py": {
        "dmsetup suspend --nolockfs {} && dmsetup resume {}": _Trial(
            "waits-mirror", "released", r"dmsetup suspend --nolockfs \S+ && dmsetup resume"
        )
    },
    "kernel/waiting/finders/mapped/multipath.py": {
        "dmsetup message {} 0 'reinstate_path {}'": _Trial(
            _STACKED, "paths", r"dmsetup message \S+ 0 'reinstate_path 1:2'"
        ),
        "dmsetup message {} 0 fail_if_no_path": _Trial(
            _STACKED, "paths", r"dmsetup message map 0 fail_if_no_path"
        ),
    },
    "kernel/waiting/finders/mapped/suspended.py": {
        "dmsetup resume {}": _Trial("waits-mirror", "resumed", r"dmsetup resume log")
    },
    "kernel/waiting/finders/mapped/thin.py": {
        # Where other disks do not answer, with the filter that the guest has in lvm.conf.
        "lvextend {}--size +{}M {}": _Trial(_REMEDIES, "extended", r"lvextend --size \+1G shop/"),
        "lvchange {}--errorwhenfull y {}": _Trial(
            _REMEDIES, "failed", r"lvchange --errorwhenfull y"
        ),
    },
    "kernel/waiting/finders/servers/cifs.py": {
        "{} route add unreachable {}": _Trial(
            "waits-smb", "unreachable", r"10\.0\.0\.6.* ip route add unreachable \$host"
        )
    },
    "kernel/waiting/finders/servers/iscsi.py": {
        "check()": _Trial(_REMEDIES, "connected", r"/dev/tcp/127\.0\.0\.4/3260"),
        # What the unit starts: no guest of a scenario has systemd.
        "systemctl restart iscsid": _Trial(_REMEDIES, "connected", r"^iscsid "),
    },
    "kernel/waiting/finders/servers/nbd.py": {
        "check()": _Trial(_REMEDIES, "connected", r"timeout 5 bash -c '</dev/tcp/"),
        "kill -KILL {}": _Trial("waits-servers", "aborted", r"kill -KILL \$\(cat \S+/nbd0/pid\)"),
        "nbd-client -d /dev/{}": _Trial(_REMEDIES, "disconnected", r"nbd-client -d /dev/nbd0"),
    },
    "kernel/waiting/finders/servers/scsi.py": {
        "echo 60 > {}": _Trial(_REMEDIES, "recovered", r"echo 60 > \S+/eh_deadline")
    },
    "kernel/waiting/finders/stacked/arrays.py": {
        "mdmon --takeover {}": _Trial(_REMEDIES, "marked", r"mdmon --takeover md127"),
        "echo active > /sys/block/{}/md/array_state": _Trial(
            _STACKED, "arrays", r"echo active > \S+/array_state"
        ),
        "echo 0 > /sys/block/{}/md/suspend_hi": _Trial(
            _STACKED, "arrays", r"echo 0 > \S+/suspend_hi"
        ),
    },
    "kernel/waiting/finders/stopped/cgroups.py": {
        "echo {} > {}": _Trial(_STOPPED, "continue", r"echo 0 > \S+/cgroup\.freeze")
    },
    "kernel/waiting/findings/memory_cgroups.py": {
        "echo {} > {}": _Trial("waits-memory", "raised", r"echo 170M > memory\.high"),
        "echo 0 > {}": _Trial("waits-cgroup1", "enabled", r"echo 0 > \S+/memory\.oom_control"),
        "kill -KILL {}": _Trial(_REMEDIES, "killed", _KILL),
    },
}
"""The trial of each command, by file of the package."""
# `echo b > /proc/sysrq-trigger` is no command of a remedy: it ends the guest, see `waits-restart`.
# Sentences also name commands that only read (`dmsetup info`, `multipath -ll`, `dmesg`).


def _advised() -> dict[str, set[str]]:
    """Return the commands of remedies, by file."""
    found: dict[str, set[str]] = {}
    for place in _PLACES:
        for path in sorted((_PACKAGE / place).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if not isinstance(function, ast.FunctionDef):
                    continue
                for call in ast.walk(function):
                    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Remedy":
                        continue
                    for keyword in call.keywords:
                        if keyword.arg == "command":
                            name = path.relative_to(_PACKAGE).as_posix()
                            found.setdefault(name, set()).update(_texts(keyword.value, function))
    return found


def test_each_command_has_a_trial() -> None:
    assert _advised() == {name: set(trials) for name, trials in _TRIED.items()}


@pytest.mark.parametrize(
    "trial", sorted({each for trials in _TRIED.values() for each in trials.values()}), ids="-".join
)
def test_each_trial_runs_its_command(trial: _Trial) -> None:
    trials = {each.name: each for each in scenario.load(trial.scenario, "6.1").trials}
    steps = [step for step in trials[trial.name].steps if step.verb == "run"]
    ran = "\n".join(step.arguments[-1] for step in steps)
    assert re.search(trial.command, ran, re.MULTILINE), ran
