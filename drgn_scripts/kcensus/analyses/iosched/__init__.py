# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was inserted into an I/O scheduler and not dispatched, and who sleeps behind it?"""
