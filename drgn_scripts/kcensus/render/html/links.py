# SPDX-License-Identifier: LGPL-2.1-or-later
"""Links from patches to their commits and postings."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from urllib.parse import quote

from kcensus.catalogue import load
from kcensus.catalogue.model import Patch

_MAX_LINKS = 3
"""Links to commits of a series; more are counted."""


@functools.cache
def catalogue() -> Mapping[str, Patch]:
    """Return the patches by id."""
    return load().patches


def first_links() -> dict[str, str]:
    """Return the address of the first link of each patch that has any."""
    known = {name: links(patch)[0] for name, patch in catalogue().items()}
    return {name: addresses[0][1] for name, addresses in known.items() if addresses}


def links(patch: Patch) -> tuple[list[tuple[str, str]], int]:
    """Return words and address of links to the commits of a patch, or to its latest posting.

    :return: the links, and how many more commits there are
    """
    commits = [commit for commit in patch.commits if commit.hash]
    shown = [
        (f"commit {commit.hash[:12]}", f"https://git.kernel.org/linus/{quote(commit.hash)}")
        for commit in commits[:_MAX_LINKS]
    ]
    postings = [posting for posting in patch.postings if posting.message_id]
    if not shown and postings:
        latest = max(postings, key=lambda posting: posting.date)
        address = f"https://lore.kernel.org/all/{quote(latest.message_id, safe='@')}/"
        shown = [(f"posting of {latest.date}", address)]
    return shown, max(len(commits) - _MAX_LINKS, 0)
