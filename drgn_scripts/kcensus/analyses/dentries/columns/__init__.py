# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a census of dentries keeps: bits of each slot, and sums."""
