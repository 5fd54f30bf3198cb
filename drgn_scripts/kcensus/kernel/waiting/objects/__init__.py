# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pointers that lead from a sleeping task to the object of its wait."""
