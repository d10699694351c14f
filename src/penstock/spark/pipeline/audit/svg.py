"""Small SVG plots, without a library; they scale with the page and use its colours."""

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH = 720
HEIGHT = 190
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 30


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def bars(values: Sequence[tuple[str, float]], *, unit: str, is_bad: bool = False) -> str:
    """Plot a bar for each label; with many labels, only some are written."""
    top = max([value for _, value in values] + [1.0])
    room = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    every = max(1, math.ceil(len(values) / 8))
    parts = [_axis_y(top, unit)]
    for index, (label, value) in enumerate(values):
        height = (HEIGHT - TOP - BOTTOM) * value / top
        x = LEFT + index * room
        kind = "bad" if is_bad else "mark"
        parts.append(
            f'<rect class="{kind}" x="{x + 0.1 * room:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{max(0.8 * room, 0.8):.1f}" height="{height:.1f}"><title>{html.escape(label)}: {value:,.0f} {unit}'
            "</title></rect>"
        )
        if index % every == 0:
            parts.append(_text(x + room / 2, HEIGHT - 10, label, "middle"))
    return _svg(parts)


def curves(lines: Sequence[Line], *, ticks_x: Sequence[tuple[float, str]], ticks_y: Sequence[tuple[float, str]]) -> str:
    """Plot lines over a common area; the caller scales the values and labels the ticks."""
    place_x = _scale(ticks_x[0][0], ticks_x[-1][0], LEFT, WIDTH - RIGHT - 20)
    place_y = _scale(ticks_y[0][0], ticks_y[-1][0], HEIGHT - BOTTOM, TOP)
    parts = []
    for at, label in ticks_y:
        y = place_y(at)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, label, "end"))
    for at, label in ticks_x:
        parts.append(_text(place_x(at), HEIGHT - 10, label, "middle"))
    for number, line in enumerate(lines):
        points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="line line{number % 4}" points="{points}"/>')
        parts.append(f'<circle class="dot line{number % 4}" cx="{LEFT + 14}" cy="{TOP + 8 + 18 * number}" r="4"/>')
        parts.append(_text(LEFT + 24, TOP + 12 + 18 * number, line.name, "start"))
    return _svg(parts)


def strip(cells: Sequence[tuple[str, str]]) -> str:
    """Plot a row of cells: each a kind (good, bad, unknown) and a tooltip."""
    room = (WIDTH - 2 * RIGHT) / max(len(cells), 1)
    width = max(room - 0.6, 0.6 * room)
    parts = [
        f'<rect class="{kind}" x="{RIGHT + index * room:.2f}" y="4" width="{width:.2f}" height="32">'
        f"<title>{html.escape(label)}</title></rect>"
        for index, (kind, label) in enumerate(cells)
    ]
    return _svg(parts, 40)


def _axis_y(top: float, unit: str) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{share * top:,.0f}" if share else f"0 {unit}", "end"))
    return "".join(parts)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(parts: Sequence[str], height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
