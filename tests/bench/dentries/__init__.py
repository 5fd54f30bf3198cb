# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` on the largest dumps."""
