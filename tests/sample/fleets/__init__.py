# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fleets on real Dask clusters."""
