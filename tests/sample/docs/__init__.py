# SPDX-License-Identifier: LGPL-2.1-or-later
"""Code blocks and pictures of the documentation are what kcensus prints and draws today."""
