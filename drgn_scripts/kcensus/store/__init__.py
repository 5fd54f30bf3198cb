# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of results: a Delta Lake table that ``kcensus record`` appends to, and its trends."""

from __future__ import annotations

from importlib.util import find_spec

from kcensus.text import how_to_install


class StoreError(Exception):
    """A store cannot be used; the message is one sentence for the user."""


def require_store(*more: str) -> None:
    """Check that the libraries for stores, and ``more``, are installed.

    :raises StoreError: one is not
    """
    for name in ("pyarrow", "deltalake", *more):
        if find_spec(name) is None:
            raise StoreError(
                f"stores and their trends need {name}: {how_to_install('store')}, "
                "or the package kcensus-store"
            )
