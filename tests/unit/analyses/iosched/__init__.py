# SPDX-License-Identifier: LGPL-2.1-or-later
"""What iosched makes of requests, with invented ones."""
