# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the debug info of a kernel, or name the package that contains it."""
