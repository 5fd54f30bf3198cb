# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks: which there are, their stacks, and what they wait for."""
