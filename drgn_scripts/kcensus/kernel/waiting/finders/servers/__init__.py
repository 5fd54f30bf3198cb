# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers, and the hosts of SCSI disks: what must answer from outside of the kernel."""
