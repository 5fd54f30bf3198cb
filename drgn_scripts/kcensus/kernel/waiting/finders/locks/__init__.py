# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of the holders of locks, and of similar objects."""
