# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups, their ids, and which of them each slab object is charged to."""
