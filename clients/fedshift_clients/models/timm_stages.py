"""Cuts a network of timm into stages: a row of its own modules, cut where timm's ``feature_info`` says."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedshift_clients.models.libraries import blank

_OF_ACTIVATIONS = ("torch.nn.modules.activation", "timm.layers.activations")  # starts of their modules
_GATES = ("Sigmoid", "Hardsigmoid", "HardSigmoid", "Softmax", "MultiheadAttention")  # they weigh a map, and make none


@dataclass(frozen=True)
class Cut:
    """Where a network is cut, by the names of its modules.

    Attributes:
        stages: The modules of each stage, in their order.
        widths: Channels of the map of each stage.
        levels: The activations of :func:`_levels`; None where a stage has none.
    """

    stages: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    levels: tuple[str, ...] | None


@dataclass
class _Call:
    """A module's part in a forward pass: ``given`` is its only argument, None if there are several."""

    name: str
    given: Any = None
    result: Any = None
    inside: list["_Call"] = field(default_factory=list)

    def all_inside(self) -> Iterator["_Call"]:
        """Yield this call and those inside it, in the order in which they began."""
        yield self
        for call in self.inside:
            yield from call.all_inside()


def cut(body: Any, size: int) -> Cut | None:
    """Return where a network is cut, by a pass of two images of a size; None where it is no row of modules.

    A stage ends at each module of ``feature_info``. The first begins with the images: where the first of these modules
    is of another kind than the second it is the stem's, and ends no stage. The last ends with the network's last map.
    One without weights belongs to the stage before. It is None too for a network whose maps are not (B, C, H, W).

    Args:
        body: The network without its classifier, in evaluation mode; it may have no weights (device ``meta``).
        size: Of the images, in pixels.
    """
    about = getattr(body, "feature_info", None)
    infos = {str(info["module"]): int(info["num_chs"]) for info in getattr(about, "info", about) or ()}
    x = blank(body, size)
    with torch.no_grad():
        called = _recorded(body, x, body.forward_features)
        row = _row(called, infos)
        ends = _ends(body, [call.name for call in row], list(infos)) if row is not None else None
        if row is None or ends is None:
            return None
        parts = [row[start:end] for start, end in pairwise((0, *ends))]
        h, widths = x, []
        for part in parts:
            h = modules(body, [call.name for call in part])(h)
            if h.ndim != 4 or h.shape[2] != h.shape[3] or infos.get(part[-1].name, h.shape[1]) != h.shape[1]:
                return None
            widths.append(h.shape[1])
        if h.shape != called.result.shape or body.forward_head(h).shape != body(x).shape:
            return None
    first = next(place for place, call in enumerate(row) if call.name in infos)
    stem = row[: first + (row[first] is not parts[0][-1])]  # without the first stage's own last module
    return _cut(body, stem, parts, widths)


def cut_at_maps(body: Any, size: int, maps: int) -> Cut | None:
    """Return where a network that returns a list of maps is cut: after each of the last ``maps`` of them.

    It is None where it is no row of modules, or its maps are not (B, C, H, W).

    Args:
        body: Such a network of timm (``features_only``), as for :func:`cut`.
        size: Of the images, in pixels.
        maps: How many maps count.
    """
    with torch.no_grad():
        called = _recorded(body, blank(body, size), body.forward)
    found = called.result[-maps:]
    called.result = found[-1]
    row = _row(called, ()) or []
    places = {id(call.result): place for place, call in enumerate(row, 1)}
    ends = [places.get(id(each), 0) for each in found]
    if 0 in ends or any(each.ndim != 4 or each.shape[2] != each.shape[3] for each in found):
        return None
    parts = [row[start:end] for start, end in pairwise((0, *ends))]
    return _cut(body, [], parts, [each.shape[1] for each in found])


def _cut(body: nn.Module, stem: list[_Call], parts: list[list[_Call]], widths: list[int]) -> Cut:
    names = tuple(tuple(call.name for call in part) for part in parts)
    return Cut(names, tuple(widths), _levels(body, [stem, *parts]))


def modules(body: nn.Module, names: Sequence[str]) -> nn.Sequential:
    """Return modules of a network, by their names, as one that owns none of them."""
    return nn.Sequential(*(body.get_submodule(name) for name in names))


def levels_at(body: nn.Module, at: Cut | None) -> tuple[nn.Module, ...] | None:
    """Return the modules of a network that are its levels; None where it has none."""
    if at is None or at.levels is None:
        return None
    try:
        return tuple(body.get_submodule(name) for name in at.levels)
    except AttributeError:  # another layer is in the place of one that had it inside (model.bn=group)
        return None


def _recorded(body: Any, x: Tensor, passes: Callable[[Tensor], Any]) -> _Call:
    """Return a pass from images on, with all calls of modules."""
    root = _Call("", x)
    open_calls = [root]
    names = {module: name for name, module in body.named_modules()}

    def enter(module: nn.Module, args: tuple[Any, ...], more: dict[str, Any]) -> None:
        alone = len(args) == 1 and all(value is None for value in more.values())
        call = _Call(names[module], args[0] if alone else None)
        open_calls[-1].inside.append(call)
        open_calls.append(call)

    def leave(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        open_calls.pop().result = result

    hooks = []
    for module in names:
        hooks += [module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)]
    try:
        root.result = passes(x)
    finally:
        for hook in hooks:
            hook.remove()
    return root


def _row(call: _Call, ends: Collection[str]) -> list[_Call] | None:
    """Return the modules that lead from a call's argument to its result, each from the very tensor of the one before.

    A module with an end inside is itself a row. It is None where anything else happens on the way.
    """
    row: list[_Call] = []
    at = call.given
    for inner in call.inside:
        if at is None or inner.given is not at:
            return None
        at = inner.result
        within = [end for end in ends if end.startswith(f"{inner.name}.")]
        parts = _row(inner, within) if within else [inner]
        if parts is None:
            return None
        row += parts
    return row if row and at is call.result else None


def _ends(body: nn.Module, row: list[str], infos: list[str]) -> tuple[int, ...] | None:
    """Return the places in a row after which stages end; None where they are not in a row of their own."""
    if len(infos) < 2 or len(set(row)) < len(row) or not set(infos) <= set(row):
        return None
    ends = [row.index(name) + 1 for name in infos]
    if ends != sorted(ends):
        return None
    first, second = (type(body.get_submodule(name)) for name in infos[:2])
    ends = [*ends[first is not second : -1], len(row)]
    learns = [any(True for _ in body.get_submodule(name).parameters()) for name in row]
    while len(ends) > 1 and not any(learns[ends[-2] :]):
        del ends[-2]
    return tuple(ends) if len(ends) > 1 else None


def _levels(body: nn.Module, parts: Sequence[Sequence[_Call]]) -> tuple[str, ...] | None:
    """Return the last activation of the stem, where it has one, and of each stage; None where a stage has none.

    It is the last that is given a map of the size with which its part ends, before pooling, and of as many channels or
    more. In a ResNet it follows the sum of the last block, and is given the map of the stage. Where blocks end without
    activation (linear bottlenecks) it is inside the last: in efficientnets it is given the expanded channels, before
    the projection. Gates (squeeze and excitation) and one of several branches (inception, densenet) do not count.
    """
    found: list[str] = []
    for place, part in enumerate(parts):
        ends = [at for at, call in enumerate(part, 1) if _makes(body.get_submodule(call.name))]
        wanted: tuple[int, ...] = tuple(part[ends[-1] - 1].result.shape) if ends else ()
        acts = [
            call.name
            for outer in part[: ends[-1] if ends else 0]
            for call in outer.all_inside()
            if isinstance(call.given, Tensor)
            and _activates(body.get_submodule(call.name))
            and call.given.ndim == len(wanted)
            and call.given.shape[2:] == wanted[2:]
            and call.given.shape[1] >= wanted[1]
        ]
        if not acts and place:
            return None
        found += [name for name in acts[-1:] if name not in found]
    return tuple(found)


def _makes(module: nn.Module) -> bool:
    """Return whether a module does more than pool."""
    return _activates(module) or any(True for _ in module.parameters())


def _activates(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__.startswith(_OF_ACTIVATIONS) and not kind.__name__.startswith(_GATES)
