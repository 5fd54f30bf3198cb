# SPDX-License-Identifier: LGPL-2.1-or-later
"""What several commands do: open a target, write the outputs, put an error into words."""
