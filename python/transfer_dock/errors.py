"""What calls of a dock raise. The text is the dock's: it names the thing, and what would be right."""

from __future__ import annotations

from typing import ClassVar


class DockError(Exception):
    """Any error of a dock. ``code`` is the name of what is wrong, such as ``"NotFound"``."""

    code: ClassVar[str] = "Unknown"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidArgument(DockError, ValueError):
    """The call is wrong in itself, or does not fit the schema. Mend the call."""

    code = "InvalidArgument"


class NotFound(DockError, KeyError):
    """There is no such partition, column, consumer, row, lease or key. Rows go when they are cleared or released."""

    code = "NotFound"


class AlreadyExists(DockError):
    """A cell that is ready, or a partition or consumer that exists with other options."""

    code = "AlreadyExists"


class FailedPrecondition(DockError):
    """The state does not allow it: a sealed partition, a lease that is over, an incomplete group."""

    code = "FailedPrecondition"


class DeadlineExceeded(DockError, TimeoutError):
    """What was waited for did not come. The text says what is missing, and who holds it. Retry."""

    code = "DeadlineExceeded"


class ResourceExhausted(DockError, MemoryError):
    """It is above the partition's budget by itself, or there is no memory."""

    code = "ResourceExhausted"


class Cancelled(DockError):
    """The call was cancelled."""

    code = "Cancelled"


class EndOfData(DockError):
    """Nothing can come any more: the partition is sealed, and every row is done for this consumer."""

    code = "EndOfData"


class Unavailable(DockError, ConnectionError):
    """No server answers, or it shuts down. The text says whether the call may have been carried out."""

    code = "Unavailable"


class Unauthenticated(DockError, PermissionError):
    """The server asks for a token or a certificate, or for another one."""

    code = "Unauthenticated"


class PermissionDenied(DockError, PermissionError):
    """A file may not be read or written."""

    code = "PermissionDenied"


class Unimplemented(DockError, NotImplementedError):
    """The dock does not have it."""

    code = "Unimplemented"


class DataLoss(DockError):
    """Bytes were damaged on the way or in store."""

    code = "DataLoss"


class InternalError(DockError):
    """A defect of the dock, or of a sampler that it was given."""

    code = "Internal"


# The numbers are those of absl::StatusCode, which are those of gRPC.
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
    """The exception of a status: called by the extension."""
    return _BY_CODE.get(code, InternalError)(text)
