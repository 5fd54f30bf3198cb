# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies shared by several analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import drgn

from kcensus.kernel.size import attempt
from kcensus.results import Finding, Remedy
from kcensus.sources.debuginfo.packages import package
from kcensus.sources.model import kernel_release
from kcensus.text import printable

_GRUBBY = ("RHEL", "Fedora", "Oracle Linux", "Amazon Linux", "openEuler")
"""Beginnings of the names of distributions that change the kernel command line with grubby."""


def with_types_first(finding: Finding, modules: Sequence[str]) -> Finding:
    """Return a finding that says which types are missing that may tell its cause.

    :param modules: their names; may be empty
    """
    if not modules or not (finding.remedies or finding.no_remedy):
        return finding  # another finding has the next step
    words = (
        f"Types of module{'s' * (len(modules) > 1)} {printable(', '.join(modules))} are missing, "
        "and the cause may be there: pass the debug info, or a type pack, with -s first"
    )
    if finding.remedies:
        return replace(finding, evidence=". ".join(filter(None, (finding.evidence, words))))
    return replace(finding, no_remedy=f"{words}. {finding.no_remedy}")


def together(remedies: Sequence[Sequence[Remedy]]) -> tuple[Remedy, ...]:
    """Return the remedies for several objects, those with the same effect and risk as one.

    :param remedies: of each object, the best one first
    """
    found: dict[tuple[str, str, str], Remedy] = {}
    for place in range(max(map(len, remedies), default=0)):
        for each in (own[place] for own in remedies if place < len(own)):
            key = each.effect, each.risk, each.until
            known = found.get(key)
            if known is None or not (known.command and each.command):
                found.setdefault(key, each)
            elif each.command not in known.command.splitlines():
                undo = "\n".join(filter(None, (known.undo, each.undo)))
                command = f"{known.command}\n{each.command}"
                found[key] = replace(known, command=command, undo=undo)
    return tuple(found.values())


def written(effect: str, file: str, value: object, before: object = None, **more: Any) -> Remedy:
    """Return the remedy that writes a value to a file of the kernel, with ``more`` of its members.

    :param before: the value now; None where it is unknown, or the write cannot be undone
    """
    undo = "" if before is None else f"echo {before} > {file}"
    return Remedy(effect=effect, command=f"echo {value} > {file}", undo=undo, **more)


def sysctl(effect: str, name: str, value: int, before: str | int, **more: Any) -> Remedy:
    """Return the remedy that sets a sysctl; it is not offered on a kernel without the sysctl.

    :param before: the value now, or the name and value of the setting that replaces it
    """
    return Remedy(
        effect=effect,
        command=f"sysctl -w {name}={value}",
        undo=f"sysctl -w {before if isinstance(before, str) else f'{name}={before}'}",
        knobs=(f"/proc/sys/{name.replace('.', '/')}",),
        **more,
    )


def at_boot(prog: drgn.Program, effect: str, parameter: str, **more: Any) -> Remedy:
    """Return the remedy that adds a parameter to the kernel command line.

    Its command is that of the kernel's distribution, which the release names; of an unknown one it
    has none. Only words depend on the release. Sources: grub-mkconfig of Debian and Ubuntu, which
    reads ``/etc/default/grub.d/*.cfg``; grubby(8); pbl(8) of SUSE's perl-Bootloader.

    :param parameter: of harmless characters only
    """
    known = package(attempt(lambda: kernel_release(prog)) or "")
    distribution = known.distribution if known else ""
    command = undo = ""
    if distribution in ("Debian", "Ubuntu"):
        file = f"/etc/default/grub.d/{parameter.partition('=')[0]}.cfg"
        added = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {parameter}"'
        command = f"mkdir -p /etc/default/grub.d && echo '{added}' > {file} && update-grub"
        undo = f"rm {file} && update-grub"
    elif distribution.startswith(_GRUBBY):
        command, undo = (
            f"grubby --update-kernel=ALL --{option}={parameter}"
            for option in ("args", "remove-args")
        )
    elif distribution == "SUSE":
        command, undo = (
            f"pbl --{option}-option {parameter} && pbl --config" for option in ("add", "del")
        )
    return Remedy(
        effect=f"{effect} from the next boot on, by adding {parameter} to the kernel command line",
        command=command,
        undo=undo,
        until="the parameter is removed, and the machine rebooted",
        **more,
    )
