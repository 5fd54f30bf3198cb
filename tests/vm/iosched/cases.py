# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which guests with a slow disk the tests use: each on a kernel or two, and on all if asked."""

from __future__ import annotations

import pytest

from tests.lab import kernels, kernels_of
from tests.lab.scenario import load

SCHEDULERS = {
    "iosched-bfq": "bfq",
    "iosched-deadline": "mq-deadline",
    "iosched-kyber": "kyber",
    "iosched-none": "none",
    "iosched-starved": "bfq",
    "iosched-starved-deadline": "mq-deadline",
}
"""Schedulers by scenario."""
STARVED = ("iosched-starved", "iosched-starved-deadline")

USUAL = tuple(
    f"{kernel} {scenario}"
    for scenario in SCHEDULERS
    for kernel in kernels(every=True)
    if kernel in kernels_of(scenario)
    if not load(scenario, kernel).on_request
)
"""A guest takes a minute or two to make: the lab builds ahead what is not only on request."""
usually = pytest.mark.usually(*USUAL)
"""Marks tests with a kernel and a scenario as parameters."""
