# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols of a kernel from its own table, kallsyms, or from System.map or /proc/kallsyms."""

from __future__ import annotations

from kcensus.sources.debuginfo.kallsyms.files import from_file
from kcensus.sources.debuginfo.kallsyms.loading import load
from kcensus.sources.debuginfo.kallsyms.module_symbols import module_symbols
from kcensus.sources.debuginfo.kallsyms.symbol_names import BadKallsyms
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols

__all__ = ["BadKallsyms", "Symbols", "from_file", "load", "module_symbols"]
