# SPDX-License-Identifier: LGPL-2.1-or-later
"""What all analyses rest on: the machine and its super blocks."""
