"""Numbers to short text of steady width, and foreign text made harmless."""

from __future__ import annotations

import math

UNKNOWN = "–"
LABEL_LIMIT = 160


def clean(text: str, limit: int = LABEL_LIMIT) -> str:
    """Foreign text without control, format and line-separator characters, cut to `limit` characters."""
    if text.isprintable() and len(text) <= limit:
        return text
    kept = "".join(char for char in text[: limit * 4] if char.isprintable())
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def gib(value: float | None, digits: int = 1) -> str:
    """Bytes as GiB without the unit."""
    return UNKNOWN if value is None else f"{value / 2**30:,.{digits}f}"


def bytes_text(value: float | None) -> str:
    """Bytes with the unit that keeps three or four digits."""
    if value is None:
        return UNKNOWN
    size, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction 0..1 as percent."""
    return UNKNOWN if value is None else f"{value * 100:.{digits}f} %"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate: one decimal below 100, none above."""
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def si(value: float | None) -> str:
    """A large number in four characters: 999, 1.2k, 12k, 3.4M."""
    if value is None:
        return UNKNOWN
    size = float(value)
    for suffix in ("", "k", "M", "G", "T"):
        if abs(size) < 999.5 or suffix == "T":
            return f"{size:.1f}{suffix}" if suffix and abs(size) < 9.95 else f"{size:.0f}{suffix}"
        size /= 1000
    return UNKNOWN


def seconds(value: float | None) -> str:
    """A latency with its unit: 4.1 ms, 412 ms, 1.9 s, 12 s."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0.0995:
        return f"{value * 1000:.1f} ms" if value < 0.00995 else f"{value * 1000:.0f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 99.95 else f"{value:,.0f} s"


def duration(value: float | None) -> str:
    """A span of time in its two largest units: 41s, 3m12s, 3h12m, 2d4h."""
    if value is None or value < 0 or not math.isfinite(value):
        return UNKNOWN
    whole = int(value)
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // small:02d}{small_unit}"
    return f"{whole}s"


def hit_text(local: float | None, external: float | None) -> str:
    """How much of the prompts a cache had; beside another cache the own one is called local."""
    if external is None:
        return percent(local, 0)
    return f"{percent(local, 0)} local, {percent(external, 0)} external"
