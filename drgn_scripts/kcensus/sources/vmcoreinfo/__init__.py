# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO: parsed, read from a file, and searched for in memory; dumps without it."""
