"""Figures for large digits: few of them, and as many from one moment to the next."""

from __future__ import annotations

from llmtop.contract.units import UNKNOWN


def of_whole(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def of_speed(value: float | None) -> str:
    """Digits that stand still: 4.2, 94, 1204, 12.4k."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 9999.5:
        return f"{value / 1000:.1f}k"
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"


def of_size(value: float | None) -> str:
    """GiB: 7.0, 23.3, 420."""
    size = None if value is None else value / 2**30
    return UNKNOWN if size is None else f"{size:.1f}" if abs(size) < 99.95 else f"{size:.0f}"


def of_percent(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return "<1%" if 0 < value < 0.005 else f"{value * 100:.0f}%"
