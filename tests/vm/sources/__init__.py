# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening real dumps without what they should have."""
