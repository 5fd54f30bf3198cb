# SPDX-License-Identifier: LGPL-2.1-or-later
"""Connections to servers: remote procedure calls, and peers of sockets."""
