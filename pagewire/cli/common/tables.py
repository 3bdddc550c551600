"""Text tables and durations for terminals."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Returns one line per row: the first `left` columns left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def short_seconds(seconds: float) -> str:
    """Returns a duration in at most seven characters: 1.2 ms, 0.34 s, 12.3 s, 4:05 min, 2.5 h."""
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02} min"
    return f"{seconds / 3600:.1f} h"


def shortened(text: str, most: int) -> str:
    """Returns a text of at most so many characters, with an ellipsis where some are left out, and without
    characters that a terminal would obey."""
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
