# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the declarations of several commands share."""
