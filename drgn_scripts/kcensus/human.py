# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values for a screen: scaled, with their unit.

Rounding never turns a share below 100 % into 100 %, or one above 0 into 0.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from kcensus.results import Scalar, Unit, ratio


def human_bytes(value: float) -> str:
    """Return ``1536`` as ``1.5 KiB``."""
    if abs(value) < 1024:
        return f"{value:,.0f} B"
    for suffix in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        value /= 1024
        if abs(value) < 1023.95 or suffix == "EiB":
            break
    return f"{value:,.1f} {suffix}"


def human_ratio(value: float) -> str:
    """Return ``0.5`` as ``50.0%``."""
    if 0.9995 <= value < 1:
        return ">99.9%"
    if 0 < value < 0.0005:
        return "<0.1%"
    return f"{value:.1%}"


def of_ram(size: int, ram: int) -> str:
    """Return bytes and their share of RAM: ``45.7 MiB (9.6% of RAM)``."""
    return f"{human_bytes(size)} ({human_ratio(ratio(size, ram))} of RAM)"


_LONG = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def human_seconds(value: float) -> str:
    """Return ``3725`` as ``1 h 2 min``."""
    size = abs(value)
    if size == 0:
        return "0 s"
    for scale, decimals, unit in ((1e6, 0, "us"), (1e3, 1, "ms")):
        if size * scale < 999.5:
            return f"{value * scale:.{decimals}f} {unit}"
    if size < 59.95:
        return f"{value:.1f} s"
    whole = round(size)
    length, unit, shorter, part = next(row for row in _LONG if whole >= row[0])
    sign = "-" if value < 0 else ""
    return f"{sign}{whole // length:,} {unit} {whole % length // shorter} {part}"


def counted(number: int, noun: str, verb: str = "", *, plural: str = "") -> str:
    """Return a count with its noun: ``3 jobs wait`` or ``1 job waits``.

    :param verb: in the plural; without one, the noun is the end
    :param plural: of the noun, where it is not the noun with an s
    """
    if number == 1:
        return f"1 {noun}{f' {verb}s' if verb else ''}"
    return f"{number:,} {plural or f'{noun}s'}{f' {verb}' if verb else ''}"


def listed(names: Sequence[str], most: int = 6, separator: str = ", ") -> str:
    """Return the first names of a list and the number of others: ``a, b and 3 more``.

    With another separator, ``a; b; and 3 more``.
    """
    end = "" if separator == ", " else separator.rstrip()
    more = f"{end} and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def shown_time(seconds: float) -> str | None:
    """Return a time in ISO 8601, UTC; None for a time beyond all calendars."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def human(value: Scalar, unit: Unit) -> str:
    """Return ``value``, which is in ``unit``, for a screen."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    match unit:
        case Unit.BYTES:
            return human_bytes(value)
        case Unit.RATIO:
            return human_ratio(value)
        case Unit.SECONDS:
            return human_seconds(value)
        case Unit.PAGES:
            return f"{number} {'page' if value == 1 else 'pages'}"
        case Unit.ADDRESS if isinstance(value, int):
            return f"0x{value:016x}"
        case Unit.NONE:  # may be an identifier (a PID, an inode): no separators
            return str(value)
    return number


_PER = ((1, "s"), (60, "min"), (3600, "h"))


def human_rate(per_second: float, unit: Unit) -> str:
    """Return ``0.5`` counted things per second as ``+30.0/min``: per the time that has one."""
    if per_second == 0:
        return "0"
    least = {Unit.RATIO: 0.001, Unit.BYTES: 1024.0}.get(unit, 1.0)
    scale, time = next((row for row in _PER if abs(per_second) * row[0] >= least), _PER[-1])
    value = per_second * scale
    if unit is Unit.BYTES:
        words = human_bytes(abs(value))
    elif unit is Unit.RATIO:
        words = human_ratio(abs(value))
    else:
        words = f"{abs(value):,.1f}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return f"{'-' if value < 0 else '+'}{words}/{time}"


def human_change(change: float, unit: Unit) -> str:
    """Return a change with its sign."""
    if change == 0:
        return "0"
    # Numbers without a unit may be identifiers, which have no separators.
    shown = human(abs(change), Unit.COUNT if unit is Unit.PAGES else unit)
    return f"{'-' if change < 0 else '+'}{shown}"
