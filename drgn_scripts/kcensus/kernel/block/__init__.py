# SPDX-License-Identifier: LGPL-2.1-or-later
"""Block devices: disks, their queues and schedulers, requests and bios."""

MODULES = (
    *("bfq", "kyber_iosched", "mq_deadline", "cfq_iosched", "deadline_iosched", "noop_iosched"),
    *("dm_mod", "md_mod", "loop", "xfs"),
)
"""Modules whose debug info the readers use if they are loaded; file systems have the functions that
end their bios."""
