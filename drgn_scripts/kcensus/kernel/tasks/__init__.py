# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks, their stacks, and the kinds of their waits."""
