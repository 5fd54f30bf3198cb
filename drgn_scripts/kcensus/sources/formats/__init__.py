# SPDX-License-Identifier: LGPL-2.1-or-later
"""File formats of dumps: what a file is, and which pages it contains.

Functions that read a file raise ``TargetError`` if it is unreadable, truncated or corrupt, or comes
from a machine of another architecture.
"""
