# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types as data, of capsules and of sources other than DWARF."""
