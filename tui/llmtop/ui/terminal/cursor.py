"""The shortest sequences that move a terminal's cursor."""

from __future__ import annotations

from collections.abc import Sequence


def move(start: tuple[int, int] | None, end: tuple[int, int]) -> str:
    """Return the shortest cursor move between two places (column, row); never a newline."""
    x, y = end
    absolute = f"\x1b[{y + 1 if y else ''}{f';{x + 1}' if x else ''}H"
    if start is None:
        return absolute
    if start == end:
        return ""
    from_x, from_y = start
    vertical = _relative(y - from_y, "B", "A")
    sideways = min(_sideways(from_x, x), key=len)
    return min(vertical + sideways, absolute, key=len)


def _sideways(start: int, end: int) -> Sequence[str]:
    if start == end:
        return ("",)
    column = f"\x1b[{end + 1}G" if end else "\r"
    back = "\b" * (start - end) if start > end else column
    return _relative(end - start, "C", "D"), column, back


def _relative(distance: int, forward: str, backward: str) -> str:
    if not distance:
        return ""
    count = abs(distance)
    return f"\x1b[{count if count > 1 else ''}{forward if distance > 0 else backward}"
