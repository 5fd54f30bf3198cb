# SPDX-License-Identifier: LGPL-2.1-or-later
"""Packages for Debian and for RPM: a virtual environment in /opt/kcensus, and its links in /usr."""
