# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who keeps what tasks wait for: a class for each kind of it."""
