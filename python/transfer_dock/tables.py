"""Tables for people to read: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

# The longest text of a cell.
_LONGEST = 48


def printable(text: str) -> str:
    """``text`` with escapes for what would change a terminal or not be seen there."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """In one line, with escapes for what cannot be printed, and … for what is too long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def as_text(head: Sequence[str], lines: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """A line for each of ``lines`` below that of the head, in columns."""
    cells = [[shortened(cell) for cell in line] for line in (head, *lines)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip() for line in cells
    )


def as_html(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same for a notebook. All text is escaped."""

    def row(kind: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(shortened(cell))}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(row("td", line) for line in lines)
    return f"<p>{html.escape(title)}</p><table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"
