# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debug info that the user passes, or that servers have."""
