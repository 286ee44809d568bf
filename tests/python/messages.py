"""Names that a message must have. Tests assert these, not its wording."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


def mentions(text: object, *names: str) -> None:
    """Asserts that a text, or the message of an error, has each of the names. All white space counts as one space."""
    told = " ".join(str(text).split())
    missing = [name for name in names if " ".join(name.split()) not in told]
    assert not missing, f"{missing} not in: {text}"


@contextlib.contextmanager
def raising(error: type[BaseException] | tuple[type[BaseException], ...], *names: str) -> Iterator[None]:
    """Asserts that the block raises such an error, whose message has each of the names."""
    with pytest.raises(error) as caught:
        yield
    mentions(caught.value, *names)
