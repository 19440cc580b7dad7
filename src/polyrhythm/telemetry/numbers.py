"""Numbers as a reader meets them, in tables, pages and lines."""

import math

NOTHING = "-"
"""What nobody knows."""


def figure(value: float | None, digits: int = 3) -> str:
    """So many significant digits, or a dash for what nobody knows.

    >>> figure(1234.5), figure(0.01234), figure(0.13449, digits=4), figure(None)
    ('1,234', '0.0123', '0.1345', '-')
    """
    if value is None or value != value:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def number(value: float | None) -> str:
    """Three or more significant digits, without an exponent.

    >>> [number(value) for value in (None, 0, 0.01234, 1.5, 12.345, 123.45, 1234567.8)]
    ['-', '0', '0.0123', '1.50', '12.3', '123', '1,234,568']
    """
    if value is None or not math.isfinite(value):
        return figure(value)
    if value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:.3g}"


def count(value: float | None) -> str:
    """A mean of counts.

    >>> count(12.0), count(1234.5), count(None)
    ('12', '1,234', '-')
    """
    return NOTHING if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in decimal units.

    >>> [size(value) for value in (None, 0, 999, 44_700_000, 1.2e12)]
    ['-', '0 B', '999 B', '44.7 MB', '1.2 TB']
    """
    if value is None:
        return NOTHING
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while value >= 999.95 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.1f} {units[power]}" if power else f"{value:.0f} B"


def percent(value: float | None) -> str:
    """A fraction in whole percent.

    >>> percent(0.256), percent(None)
    ('26 %', '-')
    """
    return NOTHING if value is None else f"{100 * value:.0f} %"


def times(value: float | None) -> str:
    """A ratio.

    >>> times(1.5), times(None)
    ('1.50x', '-')
    """
    return NOTHING if value is None else f"{value:.2f}x"


def duration(value_s: float | None) -> str:
    """Seconds as a reader says them.

    >>> duration(0.0042), duration(3.14159), duration(75), duration(4000), duration(None)
    ('4.2 ms', '3.14 s', '1 min 15 s', '1 h 6 min', '-')
    """
    if value_s is None or not math.isfinite(value_s):
        return figure(value_s)
    if value_s < 1:
        return f"{value_s * 1000:.3g} ms"
    if value_s < 60:
        return f"{value_s:.3g} s"
    minutes, rest = divmod(int(value_s), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def share(value: float) -> str:
    """A share in per cent.

    >>> share(0.314), share(0.004)
    ('31 %', '0.4 %')
    """
    return f"{100 * value:.0f} %" if value >= 0.095 or not value else f"{100 * value:.1f} %"
