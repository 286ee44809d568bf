"""Curves of a run in a notebook's cell."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT, _MARGIN = 420, 150, 52
_POINTS = 400  # drawn of a curve, at most


def chart(title: str, points: Sequence[tuple[float, float]]) -> str:
    """A curve as SVG: (step, value) in the order of steps. Values that are not finite are gaps."""
    step = -(-len(points) // _POINTS) or 1
    shown = [*points[:-1:step], *points[-1:]]
    finite = [value for _, value in shown if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    first, last = shown[0][0], max(shown[-1][0], shown[0][0] + 1)

    def at(x: float, y: float) -> str:
        right = _MARGIN + (x - first) / (last - first) * (_WIDTH - _MARGIN - 8)
        up = (y - low) / (high - low) if high > low else 0.5
        return f"{right:.1f},{_HEIGHT - 18 - up * (_HEIGHT - 42):.1f}"

    lines, line = [], list[str]()
    for x, y in [*shown, (last, math.nan)]:
        if math.isfinite(y):
            line.append(at(x, y))
        elif line:
            lines.append(line)
            line = []
    style = 'fill="none" stroke="#2563eb" stroke-width="1.6" stroke-linejoin="round"'
    drawn = "".join(
        f'<polyline points="{" ".join(one)}" {style}/>' if len(one) > 1
        else f'<circle cx="{one[0].partition(",")[0]}" cy="{one[0].partition(",")[2]}" r="2" fill="#2563eb"/>'
        for one in lines
    )  # fmt: skip
    small = 'font-size="10" fill="currentColor" opacity="0.7"'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title, quote=True)}" style="max-width:100%;font-family:sans-serif">'
        f'<text x="{_MARGIN}" y="13" font-size="12" fill="currentColor">{html.escape(title)}: {_short(shown[-1][1])}</text>'
        f'<line x1="{_MARGIN}" y1="{_HEIGHT - 16}" x2="{_WIDTH - 8}" y2="{_HEIGHT - 16}" stroke="currentColor" opacity="0.3"/>'
        f'<text x="0" y="28" {small}>{_short(high)}</text><text x="0" y="{_HEIGHT - 18}" {small}>{_short(low)}</text>'
        f'<text x="{_MARGIN}" y="{_HEIGHT - 3}" {small}>step {_short(first)}</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 3}" text-anchor="end" {small}>{_short(shown[-1][0])}</text>{drawn}</svg>'
    )


def _short(value: float) -> str:
    return f"{value:.4g}"
