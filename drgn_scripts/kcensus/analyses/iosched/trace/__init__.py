# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a trace of block devices shows, without a kernel."""
