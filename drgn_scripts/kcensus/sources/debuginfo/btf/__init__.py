# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types from BTF, the compact type information that a kernel keeps in its own memory."""
