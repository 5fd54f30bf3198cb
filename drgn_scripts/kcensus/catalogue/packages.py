# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which kernel package of a distribution is the first with a patch.

This is for display alone: types tell whether a kernel has a patch, never its version.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kcensus.catalogue.model import Distribution, Package, Patch


class Carried(str, enum.Enum):
    """What is known of a patch in the packages of a distribution."""

    SINCE = "since a package"
    BASE = "since its first release"
    """The mainline release that the kernel is based on has it."""
    ABSENT = "not in the packages looked at"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Carrier:
    """A distribution, and what is known of one patch in its packages."""

    distribution: Distribution
    carried: Carried
    known: Package | None = None
    """What the catalogue says; None where the base tells, or nothing is known."""

    @property
    def name(self) -> str:
        """Return the release, with the minor one of the first package if that is known."""
        if self.known and self.known.release:
            return f"{self.distribution.family} {self.known.release}"
        return self.distribution.name

    @property
    def has_it(self) -> bool:
        return self.carried in (Carried.SINCE, Carried.BASE)

    @property
    def which(self) -> str:
        """Return the packages as a phrase."""
        if self.known is None:
            return "package not known" if self.carried is Carried.UNKNOWN else self.carried.value
        if self.known.package:
            return f"since {self.known.package}{' or earlier' * self.known.or_earlier}"
        return f"no package up to {self.known.absent_up_to}"

    def __str__(self) -> str:
        return f"{self.name}: {self.which}"

    @property
    def source(self) -> str:
        return self.known.source if self.known else ""

    def document(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        known = self.known
        return {
            "distribution": self.distribution.name,
            "carried": self.carried.value,
            "package": known.package if known else "",
            "release": known.release if known else "",
            "or_earlier": known is not None and known.or_earlier,
            "absent_up_to": known.absent_up_to if known else "",
            "source": self.source,
        }


def carrier(patch: Patch, distribution: Distribution) -> Carrier:
    """Return what is known of a patch in the packages of a distribution."""
    for package in patch.packages:
        if package.distribution == distribution.name:
            carried = Carried.SINCE if package.package else Carried.ABSENT
            return Carrier(distribution, carried, package)
    is_older = patch.release and _order(patch.release) <= _order(distribution.base)
    return Carrier(
        distribution, Carried.BASE if is_older and patch.is_upstream else Carried.UNKNOWN
    )


def _order(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def where_fixed(patch: Patch, kernel: str, distributions: Sequence[Distribution]) -> str:
    """Return which packages of a kernel's distribution have a patch, as a phrase.

    If none is known, the next release of the same distribution that has it follows.

    :param kernel: its release and build
    :return: empty if the patch is in no mainline kernel, or the distribution is unknown
    """
    own = next((each for each in distributions if re.match(each.kernel, kernel)), None)
    if own is None or not patch.is_upstream:
        return ""
    return "; ".join(map(str, _own_and_next(patch, own, distributions)))


def _own_and_next(
    patch: Patch, own: Distribution, distributions: Sequence[Distribution]
) -> Iterator[Carrier]:
    yield carrier(patch, own)
    family = [each for each in distributions if each.family == own.family]
    newer = [carrier(patch, each) for each in family[family.index(own) :]]
    if not newer[0].has_it:
        yield from [each for each in newer if each.has_it][:1]
