"""The exceptions of a dock. Their text names the thing that is wrong, and what would be right."""

from __future__ import annotations

from typing import ClassVar


class DockError(Exception):
    """The base class. ``code`` is the name of the error, such as ``"NotFound"``."""

    code: ClassVar[str] = "Unknown"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidArgument(DockError, ValueError):
    """The call is invalid, or does not fit the schema. Fix the call."""

    code = "InvalidArgument"


class NotFound(DockError, KeyError):
    """No such partition, column, consumer, row, lease or key. A row is gone once it is cleared or released."""

    code = "NotFound"


class AlreadyExists(DockError):
    """The cell is ready already, or the partition or consumer exists with different options."""

    code = "AlreadyExists"


class FailedPrecondition(DockError):
    """The state does not allow it: a sealed partition, an expired lease, an incomplete group."""

    code = "FailedPrecondition"


class DeadlineExceeded(DockError, TimeoutError):
    """What the call waited for did not come. The text says what is missing, and which consumer holds it. Retry."""

    code = "DeadlineExceeded"


class ResourceExhausted(DockError, MemoryError):
    """The request alone exceeds the partition's budget, or memory is exhausted."""

    code = "ResourceExhausted"


class Cancelled(DockError):
    """The call was cancelled."""

    code = "Cancelled"


class EndOfData(DockError):
    """No more rows can come: the partition is sealed, and every row is done for this consumer."""

    code = "EndOfData"


class Unavailable(DockError, ConnectionError):
    """No server answers, or it is shutting down. The text says whether the call may have been carried out."""

    code = "Unavailable"


class Unauthenticated(DockError, PermissionError):
    """The server requires a token or a certificate, or a different one."""

    code = "Unauthenticated"


class PermissionDenied(DockError, PermissionError):
    """A file may not be read or written."""

    code = "PermissionDenied"


class Unimplemented(DockError, NotImplementedError):
    """The dock does not support it."""

    code = "Unimplemented"


class DataLoss(DockError):
    """Bytes were damaged in transit or in storage."""

    code = "DataLoss"


class InternalError(DockError):
    """A bug in the dock, or in a sampler that it was given."""

    code = "Internal"


# The numbers of absl::StatusCode.
_BY_CODE: dict[int, type[DockError]] = {
    1: Cancelled,
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    11: EndOfData,
    12: Unimplemented,
    13: InternalError,
    14: Unavailable,
    15: DataLoss,
    16: Unauthenticated,
}


def from_code(code: int, text: str) -> DockError:
    """The exception for a status code: called by the extension."""
    return _BY_CODE.get(code, InternalError)(text)


def code_of(error: DockError) -> int:
    """The status code of an exception: the inverse."""
    return next((code for code, kind in _BY_CODE.items() if isinstance(error, kind)), 13)
