# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening dumps without their debug info."""
