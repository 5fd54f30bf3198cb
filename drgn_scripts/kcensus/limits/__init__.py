# SPDX-License-Identifier: LGPL-2.1-or-later
"""What this process may take of the machine that it runs on: CPU time, memory, priority.

Limits are those of the whole process, so only the command line sets any: inside crash and drgn, and
where a program imports :mod:`kcensus`, the process is somebody else's.
"""
