# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where kcensus runs at the prompt of another program, on the kernel that it has open."""
