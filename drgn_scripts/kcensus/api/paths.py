# SPDX-License-Identifier: LGPL-2.1-or-later
"""Paths of dentries."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kcensus.api.addresses import Place, addresses_of
from kcensus.api.frames import AddressedSeries
from kcensus.api.source import Readable, context_of
from kcensus.engine.memory import Faults
from kcensus.kernel.vfs.paths import ancestry, resolve
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.text import printable


def paths(source: Readable, addresses: Place | Iterable[Place]) -> pd.Series[str]:
    """Return the path of each dentry, through mounts, as init's namespace has it.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", "d_parent")
    >>> busiest = dentries["d_parent"].value_counts().index[0]
    >>> kcensus.paths(target, [busiest]).tolist()
    ['/srv/spool/tmp']

    :param source: a drgn program or a target
    :param addresses: one dentry or several, in any order, repeated or not: objects, pointers or
        addresses, such as the index of a DataFrame of :func:`kcensus.objects`
    :return: paths by address. ``?`` begins a path whose upper end is unreadable, and replaces a
        name that is. Special characters are escaped, so it is safe to print
    :raises LookupError: the debug info lacks a type that is needed
    :raises NotRecorded: the capsule that is read lacks it
    :raises ValueError: pandas made floats of the addresses
    """
    kernel = context_of(source).kernel
    dentries = addresses_of(addresses)
    faults = Faults()
    chain = ancestry(kernel.memory, dentries, faults)
    texts = [
        printable(path.text) for path in resolve(chain, dentries, super_blocks(kernel).mount_roots)
    ]
    return AddressedSeries(texts, pd.Index(dentries, name="address"), dtype=object, name="path")
