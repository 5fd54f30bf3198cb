# SPDX-License-Identifier: LGPL-2.1-or-later
"""Devices on top of others that pass I/O on by threads of their own: loop devices and md arrays."""
