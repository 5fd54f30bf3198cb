# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pictures of graphs, as SVG and in the language of Graphviz."""
