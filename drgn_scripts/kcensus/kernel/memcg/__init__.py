# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups, their ids, and who is charged for an object."""
