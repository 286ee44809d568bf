"""How methods of workers are called: which part of the arguments each rank gets, and what becomes of the results.

The names are verl's. The modes are carried out in C++ (src/runtime/dispatch); what a caller defines is called here.
"""

from __future__ import annotations

import difflib
import enum
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from transfer_dock.errors import InvalidArgument

Function = TypeVar("Function", bound=Callable[..., Any])

# Called with the group and the arguments: a tuple and a dict of lists, with an element for each rank.
DispatchFunction = Callable[..., tuple[Sequence[Sequence[Any]], Mapping[str, Sequence[Any]]]]
# Called with the group and a list with the result of each rank.
CollectFunction = Callable[[Any, list[Any]], Any]


@dataclass(frozen=True)
class DispatchMode:
    """A mode: one of :class:`Dispatch`, or of one's own (:func:`register_dispatch_mode`)."""

    name: str
    # The mesh of the group that arranges its ranks, for the modes that need one.
    mesh: str = "megatron"
    # Whether rows that do not divide are padded rather than refused. The copies weigh 0 in the column "row_weights",
    # and are taken out of the result.
    pad: bool = False
    dispatch_fn: DispatchFunction | None = None
    collect_fn: CollectFunction | None = None

    def padded(self) -> DispatchMode:
        """The same with padding."""
        return replace(self, pad=True)

    def on(self, mesh: str) -> DispatchMode:
        """The same over another mesh of the group."""
        return replace(self, mesh=mesh)


# Names of verl's that are no modes here, and the advice for each.
_ELSEWHERE = {
    "RANK_ZERO": "it is an execute mode: register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)",
    "ALL": "it is an execute mode: register(Dispatch.ALL_TO_ALL, Execute.ALL)",
    "DIRECT_ROLLOUT_METHOD": "verl's groups refuse its calls; leave the method unregistered, and call it by "
    "execute_all or execute_rank_zero",
    "ND_MESH": "give make_nd_compute_dataproto_dispatch_fn(mesh_name)",
}


class _Modes(type):
    """The names of the modes."""

    if not TYPE_CHECKING:  # checkers know the names

        def __getattr__(cls, name: str) -> NoReturn:
            raise AttributeError(_no_mode(name))

    def __getitem__(cls, name: str) -> DispatchMode:
        return mode_of(name)

    def __iter__(cls) -> Iterator[DispatchMode]:
        return (mode for mode in vars(cls).values() if isinstance(mode, DispatchMode))


class Dispatch(metaclass=_Modes):
    """The modes, for a group of N ranks. PROTO: arguments are batches, or rows of a dock, and cut by rows."""

    # x -> x for each; a list of N results.
    ONE_TO_ALL = DispatchMode("ONE_TO_ALL")
    # A list of N is divided, anything else goes to each; a list.
    ALL_TO_ALL = DispatchMode("ALL_TO_ALL")
    # Each argument is a list of N, of which rank i gets element i; a list.
    DP_COMPUTE = DispatchMode("DP_COMPUTE")
    # N chunks of consecutive rows; concatenated.
    DP_COMPUTE_PROTO = DispatchMode("DP_COMPUTE_PROTO")
    # The first argument goes to each, the others are cut; concatenated.
    DP_COMPUTE_PROTO_WITH_FUNC = DispatchMode("DP_COMPUTE_PROTO_WITH_FUNC")
    # Cut as by DP_COMPUTE_PROTO; a list.
    DP_COMPUTE_METRIC = DispatchMode("DP_COMPUTE_METRIC")
    # Over the mesh "megatron" of the group, or another (DispatchMode.on).
    MEGATRON_COMPUTE = DispatchMode("MEGATRON_COMPUTE")
    MEGATRON_COMPUTE_PROTO = DispatchMode("MEGATRON_COMPUTE_PROTO")
    MEGATRON_PP_AS_DP = DispatchMode("MEGATRON_PP_AS_DP")
    MEGATRON_PP_AS_DP_PROTO = DispatchMode("MEGATRON_PP_AS_DP_PROTO")
    MEGATRON_PP_ONLY = DispatchMode("MEGATRON_PP_ONLY")


class Execute(enum.Enum):
    """Where a method runs."""

    ALL = "ALL"
    # On rank 0 alone, whose result is the result: for ONE_TO_ALL and ALL_TO_ALL.
    RANK_ZERO = "RANK_ZERO"


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str, *, pad: bool = False) -> DispatchMode:
    """One chunk of rows for each data-parallel rank of a mesh, which all ranks of its other dimensions get, too.

    Results of the first of each other dimension, and the last of "pp", are concatenated.
    """
    return DispatchMode("ND_MESH", mesh=mesh_name, pad=pad)


def register_dispatch_mode(name: str, dispatch_fn: DispatchFunction, collect_fn: CollectFunction) -> DispatchMode:
    """A mode of one's own, which then is ``Dispatch.<NAME>``, too, in capitals as in verl.

    dispatch_fn(group, *args, **kwargs) returns a tuple of lists and a dict of lists, with an element for each rank;
    collect_fn(group, results) returns the result of the call. Both are called in the controller's process.
    InvalidArgument if there is a mode of this name.
    """
    name = name.upper()
    if hasattr(Dispatch, name) or name in _ELSEWHERE:
        raise InvalidArgument(f"there is a mode '{name}' already; choose another name")
    mode = _own_mode(name, dispatch_fn, collect_fn)
    setattr(Dispatch, name, mode)
    return mode


def _own_mode(name: str, dispatch_fn: Any, collect_fn: Any) -> DispatchMode:
    for what, function in (("dispatch_fn", dispatch_fn), ("collect_fn", collect_fn)):
        if not callable(function):
            raise InvalidArgument(f"dispatch mode '{name}': {what} is {function!r}; give a function")
    return DispatchMode(name, dispatch_fn=dispatch_fn, collect_fn=collect_fn)


def _no_mode(name: str) -> str:
    if name in _ELSEWHERE:
        return f"there is no dispatch mode '{name}': {_ELSEWHERE[name]}"
    known = sorted(mode.name for mode in Dispatch)
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no dispatch mode '{name}'; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    )


def mode_of(given: DispatchMode | str | Mapping[str, Any]) -> DispatchMode:
    """A mode as callers may give it: itself, its name, or a dict with "dispatch_fn" and "collect_fn"."""
    if isinstance(given, DispatchMode):
        return given
    if isinstance(given, str):
        mode = vars(Dispatch).get(given)
        if isinstance(mode, DispatchMode):
            return mode
        raise InvalidArgument(_no_mode(given))
    if isinstance(given, Execute):
        raise InvalidArgument(f"dispatch_mode is {given}, an execute mode; give execute_mode={given}")
    if isinstance(given, Mapping) and set(given) == {"dispatch_fn", "collect_fn"}:
        return _own_mode("of its own", given["dispatch_fn"], given["collect_fn"])
    raise InvalidArgument(
        f"dispatch_mode is {given!r}; give one of Dispatch, or a dict with 'dispatch_fn' and 'collect_fn'"
    )


def execute_of(given: Execute | str) -> Execute:
    """An execute mode as callers may give it: itself, or its name."""
    if isinstance(given, Execute):
        return given
    if isinstance(given, str) and given in Execute.__members__:
        return Execute[given]
    known = " or ".join(str(mode) for mode in Execute)
    raise InvalidArgument(f"execute_mode is {given!r}; give {known}")


@dataclass(frozen=True)
class Method:
    """How a method is called: what :func:`register` says about it."""

    dispatch_mode: DispatchMode = Dispatch.ALL_TO_ALL
    execute_mode: Execute = Execute.ALL
    # Whether a call waits for its result, rather than returning a future.
    blocking: bool = True
    # Whether the worker fetches rows of a dock before the method is called with them.
    materialize_futures: bool = True
    parameters: Parameters = field(default_factory=lambda: Parameters(None))

    def __post_init__(self) -> None:
        mode = self.dispatch_mode
        if mode.dispatch_fn is None and mode.name != "ND_MESH" and mode.name not in vars(Dispatch):
            raise InvalidArgument(_no_mode(mode.name))
        if self.execute_mode is Execute.RANK_ZERO and self.dispatch_mode.name not in ("ONE_TO_ALL", "ALL_TO_ALL"):
            raise InvalidArgument(
                "RANK_ZERO runs a method on rank 0 alone, so its arguments cannot be divided by "
                f"{self.dispatch_mode.name}; use Dispatch.ONE_TO_ALL"
            )


_ATTRIBUTE = "_transfer_dock_method"


def register(
    dispatch_mode: DispatchMode | str | Mapping[str, Any] = Dispatch.ALL_TO_ALL,
    execute_mode: Execute | str = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
) -> Callable[[Function], Function]:
    """Declares a method of a worker class, which groups of its workers then have. See :class:`Method`.

    The method may be ``async def``: a worker with such a method runs an event loop, in which its calls are carried out.
    """
    mode, execute = mode_of(dispatch_mode), execute_of(execute_mode)

    def decorate(function: Function) -> Function:
        options = Method(mode, execute, blocking, materialize_futures, Parameters(function, skip=1))
        setattr(function, _ATTRIBUTE, options)
        return function

    return decorate


def methods_of(cls: type) -> dict[str, Method]:
    """The registered methods of a class and its bases; one that overrides another is registered as that one was."""
    found: dict[str, Method] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            options = getattr(member, _ATTRIBUTE, None)
            if options is not None:
                found[name] = options
    return found


class Parameters:
    """The names of a method's parameters. Calls send values without names, in the order of the parameters."""

    def __init__(self, function: Callable[..., Any] | None, skip: int = 0) -> None:
        """skip: how many of the first are not sent, such as ``self``. Without a function, any values without names."""
        self._signature: inspect.Signature | None = None
        self._named: list[inspect.Parameter] = []
        self._more = True
        if function is None:
            return
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a function in C
            return
        kept = list(signature.parameters.values())[skip:]
        self._signature = signature.replace(parameters=kept)
        self._more = any(one.kind is one.VAR_POSITIONAL for one in kept)
        self._named = [
            one
            for one in kept
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            or (one.kind is one.KEYWORD_ONLY and not self._more)
        ]

    def values(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The values to send. TypeError for arguments that the method does not have, as of any call."""
        if self._signature is None:
            if kwargs:
                raise InvalidArgument(
                    f"method '{method}' is called with {', '.join(kwargs)} by name; give values by position"
                )
            return list(args)
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"method '{method}': {error}") from None
        values = [bound.get(one.name, one.default) for one in self._named]
        given = [index for index, one in enumerate(self._named) if one.name in bound]
        values = values[: given[-1] + 1 if given else 0]
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                values.extend(bound.get(parameter.name, ()))
            elif parameter.name in bound and parameter not in self._named:
                raise InvalidArgument(
                    f"method '{method}': parameters behind * or ** cannot be sent by name; give '{parameter.name}' a "
                    "name before them"
                )
        return values

    def arguments(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """What to call the method with: the inverse."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for index, value in enumerate(values):
            parameter = self._named[index] if index < len(self._named) else None
            if parameter is not None and parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return args, kwargs
