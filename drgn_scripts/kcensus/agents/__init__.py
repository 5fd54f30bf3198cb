# SPDX-License-Identifier: LGPL-2.1-or-later
"""An MCP server, through which agents ask about targets: typed tools, structured answers.

The server process speaks the protocol and decides which files are targets (``places``). It opens no
dump: each target is read by a process of its own (``pool``, ``worker``), which ends with a call
that takes too long.
"""
