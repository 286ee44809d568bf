#!/usr/bin/env python3
"""Draws how operations grow with the table: scripts/growth.py FIGURES.json docs/growth.md

FIGURES.json is of `tdock bench dock/growth dock/status --json FIGURES.json`. Rewrites the table of the page, between its
two marks, and the plot beside it, of the same name with .svg.
"""

import json
import math
import pathlib
import re
import sys

SIZES = [10_000, 100_000, 1_000_000, 10_000_000]
SHORT = {10_000: "10 k", 100_000: "100 k", 1_000_000: "1 M", 10_000_000: "10 M"}
# From the bottom of the plot to its top, with a colour that is told from its neighbours'.
OPERATIONS = {
    "status": "#6b7280",
    "complete": "#0f766e",
    "release": "#65a30d",
    "take32": "#2563eb",
    "put16": "#b45309",
    "fetch": "#7c3aed",
    "take32_uniform": "#db2777",
    "clear": "#b91c1c",
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 150, 24, 52
LOWEST, HIGHEST = 0.01, 1000.0
LABEL_DISTANCE = 15


def medians(report):
    """{operation: [microseconds by size]}"""
    found = {}
    for entry in json.loads(report.read_text())["results"]:
        match = re.fullmatch(r"dock/(?:growth/)?(\w+)/rows=(\d+)", entry["name"])
        if match and (entry["name"].startswith("dock/growth/") or match[1] == "status"):
            found[match[1], int(match[2])] = entry["median"]
    missing = [f"{name} at {size}" for name in OPERATIONS for size in SIZES if (name, size) not in found]
    if missing:
        sys.exit(f"{report} has no figure for {', '.join(missing)}")
    return {name: [found[name, size] for size in SIZES] for name in OPERATIONS}


def digits(value):
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def table(figures):
    lines = ["| µs | " + " | ".join(SHORT[size] for size in SIZES) + " | 10 M over 10 k |", "|---" * 6 + "|"]
    for name, values in figures.items():
        cells = " | ".join(digits(value) for value in values)
        lines.append(f"| `{name}` | {cells} | {values[-1] / values[0]:.1f} |")
    return "\n".join(lines)


def x_of(size):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log10(size / SIZES[0]) / math.log10(SIZES[-1] / SIZES[0])


def y_of(value):
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log10(value / LOWEST) / math.log10(HIGHEST / LOWEST)


def label_places(figures):
    """Beside the last points, moved apart where they would overlap."""
    places = {}
    below = math.inf
    for name in sorted(figures, key=lambda name: figures[name][-1]):
        below = min(y_of(figures[name][-1]), below - LABEL_DISTANCE)
        places[name] = below
    return places


def text(x, y, words, anchor="middle", fill="#374151", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{extra}>{words}</text>'


def plot(figures):
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for power in range(round(math.log10(LOWEST)), round(math.log10(HIGHEST)) + 1):
        y = y_of(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(text(LEFT - 8, y + 4, f"{10.0**power:g} µs" if power < 3 else "1 ms", anchor="end"))
    for size in SIZES:
        parts.append(text(x_of(size), HEIGHT - BOTTOM + 20, SHORT[size]))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "rows in the table"))
    labels = label_places(figures)
    for name, values in figures.items():
        colour = OPERATIONS[name]
        points = [(x_of(size), y_of(value)) for size, value in zip(SIZES, values)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        parts.append(
            f'<line x1="{x + 4:.1f}" y1="{y:.1f}" x2="{x + 18:.1f}" y2="{labels[name]:.1f}" stroke="{colour}" '
            'stroke-width="0.8"/>'
        )
        parts.append(text(x + 22, labels[name] + 4, name, anchor="start", fill=colour))
    return "\n".join(parts + ["</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    page = pathlib.Path(sys.argv[2])
    figures = medians(pathlib.Path(sys.argv[1]))
    before, _, rest = page.read_text().partition("<!-- figures -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    page.write_text(f"{before}<!-- figures -->\n{table(figures)}\n<!-- end -->\n{after}")
    page.with_suffix(".svg").write_text(plot(figures))


if __name__ == "__main__":
    main()
