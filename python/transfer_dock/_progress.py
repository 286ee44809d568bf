"""How far a run is, for people: a bar in a terminal, a bar and curves in a notebook. Elsewhere the run tells it itself, in lines."""

from __future__ import annotations

import collections
import contextlib
import html
import importlib
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from transfer_dock._charts import chart
from transfer_dock.watching import Screen

_MESSAGES = 100  # shown in a notebook, the last
_EVERY = 0.5  # seconds between two drawings


class Progress:
    """Shows the progress of one run. Only say() is thread-safe."""

    def __init__(self, title: str, curves: Sequence[tuple[str, str]], *, shown: bool) -> None:
        """curves: (label, metric) of what is told and drawn, the most important first."""
        self._title, self._curves, self._shown = title, curves, shown
        self._how_far = re.compile(rf"{re.escape(title)} \d+/\d+ \(")
        self._screen = Screen()
        self._points: dict[str, list[tuple[float, float]]] = {label: [] for label, _ in curves}
        self._last: dict[str, float] = {}
        self._step, self._total, self._drawn = 0, 0, 0.0
        self._said: collections.deque[str] = collections.deque(maxlen=_MESSAGES)
        self._bar: Any = None
        if shown and not self._screen.in_notebook and sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                self._bar = importlib.import_module("tqdm").tqdm(desc=title, unit="step", dynamic_ncols=True)

    def begin(self, steps: int) -> None:
        """steps: how many there are to be; 0: unknown."""
        self._total = steps
        if self._bar is not None:
            self._bar.total = steps or None
            self._bar.refresh()

    def step(self, number: int, metrics: Mapping[str, float]) -> None:
        for label, metric in self._curves:
            if metric in metrics:
                self._points[label].append((number, metrics[metric]))
                self._last[label] = metrics[metric]
        self._step = number
        if self._bar is not None:
            self._bar.set_postfix({label: f"{value:.4g}" for label, value in self._last.items()}, refresh=False)
            self._bar.update(number - self._bar.n)
        else:
            self._draw(_EVERY)

    def refresh(self) -> None:
        """Shows what was said since the last step."""
        if self._screen.in_notebook and self._said:
            self._draw(_EVERY)

    def say(self, line: str) -> None:
        """A line of the run. If a bar is shown, those that tell how far the run is are left out."""
        if not line or (self._screen.is_live and self._how_far.match(line)):
            return
        if not self._shown and not line.startswith("warning: "):
            return
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        elif self._screen.in_notebook:  # which shows what goes to standard error as errors, and apart from the rest
            self._said.append(line)
        else:
            print(line, file=sys.stderr, flush=True)
            self._screen.keep()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._step > 0 or self._said:
            self._draw(0.0)

    def _draw(self, every: float) -> None:
        now = time.monotonic()
        if not self._shown or not self._screen.is_live or now - self._drawn < every:
            return
        self._drawn = now
        self._screen.draw(self._text, self._html)

    def _text(self) -> str:
        of = f"{self._step}/{self._total}" if self._total else f"{self._step}"
        values = "".join(f", {label} {value:.4g}" for label, value in self._last.items() if math.isfinite(value))
        return f"{self._title}: step {of}{values}"

    def _html(self) -> str:
        share = min(1.0, self._step / self._total) if self._total else 0.0
        bar = f'<progress max="1" value="{share:.4f}" style="width:22em;vertical-align:middle"></progress>'
        charts = "".join(chart(label, points) for label, points in self._points.items() if points)
        said = html.escape("\n".join(self._said))
        return (
            f"<p>{bar} {html.escape(self._text())}</p><div>{charts}</div>"
            f'<pre style="font-size:85%;opacity:0.8;white-space:pre-wrap;max-height:16em;overflow:auto">{said}</pre>'
        )
