# SPDX-License-Identifier: LGPL-2.1-or-later
"""Block devices: disks, their queues and schedulers, requests and bios."""
