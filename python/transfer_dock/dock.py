"""The dock: a table of samples, which the stages of post-training fill column by column and take rows from."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from transfer_dock import _native, tables, watching
from transfer_dock.arguments import ColumnData, RowIds, RowsLike, TagsLike
from transfer_dock.calls import AsyncDock, DockCalls, Partition, Taken
from transfer_dock.errors import DockError

__all__ = ["ColumnData", "Dock", "RowIds", "RowsLike", "TagsLike", "Taken"]


class Dock(DockCalls):
    """A dock in this process (:meth:`local`) or in another one (:meth:`connect`).

    Thread-safe. Calls raise the errors of :mod:`transfer_dock.errors`. Only take, fetch and puts of new rows wait, for
    at most ``timeout`` seconds: 0 means not at all, None as long as it takes; a take waits by default, for a minute, the
    others do not. Ctrl-C ends a wait.

    A connected dock can be pickled, and used in a forked process, which makes a connection of its own.
    """

    def __init__(self, native: _native.Dock, connect: Mapping[str, Any] | None) -> None:
        """Use local() or connect()."""
        super().__init__(native)
        self._connect = connect
        # A server to keep alive.
        self._server: object = None
        # What makes such a dock where it is unpickled, if it is not these options.
        self._elsewhere: tuple[Any, ...] | None = None

    @staticmethod
    def local() -> Dock:
        """A dock inside this process."""
        return Dock(_native.Dock.local(), None)

    @staticmethod
    def connect(
        address: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        name: str = "",
        reconnect_for: float = 5.0,
        answer_within: float = 30.0,
    ) -> Dock:
        """The dock of a server at "unix:/path", where rows are views of the server's memory, or at "host:port".

        token, token_file: the server's token, for TCP. tls_ca, tls_certificate, tls_key: paths of PEM files. name: of
        this client in the server's log. reconnect_for: how many seconds to try to connect, at first and after the
        connection was lost. answer_within: how many seconds the server may take to answer, on top of a call's timeout.
        """
        options: dict[str, Any] = {
            "token": token or "",
            "token_file": token_file or "",
            "tls_ca": tls_ca or "",
            "tls_certificate": tls_certificate or "",
            "tls_key": tls_key or "",
            "name": name,
            "reconnect_for": reconnect_for,
            "answer_within": answer_within,
        }
        return Dock(_native.Dock.connect(address=address, **options), {"address": address, **options})

    def __reduce__(self) -> tuple[Any, ...]:
        if self._connect is None:
            raise TypeError(
                "a local dock belongs to its process and cannot be pickled: serve it (transfer_dock.DockServer), and "
                "send a dock that is connected to the server"
            )
        return self._elsewhere or (_reconnect, (dict(self._connect),))

    def __repr__(self) -> str:
        return "<Dock in this process>" if self._connect is None else f"<Dock at {self._connect['address']}>"

    def _repr_html_(self) -> str:
        """For a notebook: its partitions as they are now."""
        try:
            partitions = {name: self.status(name) for name in self.partitions()}
        except DockError as error:
            return tables.as_html(repr(self), ["the dock does not answer"], [[str(error)]])
        return watching.html_of(repr(self), partitions)

    def __enter__(self) -> Dock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def aio(self) -> AsyncDock:
        """The same verbs as coroutines: see :class:`transfer_dock.calls.AsyncDock`."""
        return AsyncDock(self)

    def partition(self, name: str) -> Partition:
        """The calls of one partition, without its name. Does not contact the dock: the partition need not exist yet."""
        return Partition(self, name)

    def close(self) -> None:
        """Ends the connection: waiting calls raise Cancelled, and leased rows are given back. Rows that were taken stay
        readable.
        """
        self._native.close()


def _reconnect(options: dict[str, Any]) -> Dock:
    return Dock.connect(options.pop("address"), **options)
