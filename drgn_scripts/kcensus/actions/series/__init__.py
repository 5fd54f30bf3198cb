# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the commands about series of results over time do."""
