# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups, their ids, and the charges of slab objects to them."""
