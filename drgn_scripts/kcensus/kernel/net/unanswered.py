# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies for the mounts of a server that does not answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from kcensus.human import listed
from kcensus.kernel.net.sockets import check
from kcensus.results import Remedy
from kcensus.text import printable

_MAX_TOLD = 8
"""Most mounts to name."""


def remedies(
    host: str,
    port: int | str,
    service: str,
    mounts: Sequence[str],
    aborted: str = "",
    *,
    is_connected: bool,
) -> Iterator[Remedy]:
    """Yield what ends the wait: the server, or the end of its mounts.

    :param service: of the server, such as ``NFS``
    :param mounts: mount points; not safe to print
    :param aborted: what the end of a mount aborts, and what to do next, with ``{}`` in its place;
        empty if it aborts nothing
    """
    what, command = check(host, port, service, is_connected=is_connected)
    where = f" on {listed([printable(mount) for mount in mounts], _MAX_TOLD)}" * bool(mounts)
    yield Remedy(
        effect=f"{what}; once it answers, all tasks go on by themselves. Avoid df, lsof, ls and "
        f"find{where}: they would hang, too",
        command=command,
    )
    for mount in [each for each in mounts if aborted and printable(each) == each][:_MAX_TOLD]:
        yield Remedy(
            effect=f"If the server does not come back, abort {aborted.replace('{}', mount)}",
            command=f"umount --force --no-canonicalize {shlex.quote(mount)}",
            risk="programs get I/O errors, and data that is not on the server yet is lost",
        )
