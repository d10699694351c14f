"""Tables of text for people."""

from collections.abc import Sequence


def tabular(rows: Sequence[Sequence[str]]) -> str:
    """Format rows with columns as wide as needed: the first one left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        line = [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)
