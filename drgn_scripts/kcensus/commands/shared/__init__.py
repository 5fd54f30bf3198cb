# SPDX-License-Identifier: LGPL-2.1-or-later
"""Common parts of commands: options, opening a target, output, and the words of errors."""
