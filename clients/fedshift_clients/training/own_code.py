"""Facts that the code of a method's class shows, so that the class need not state them; what is hidden counts as no."""

import dis
from collections.abc import Collection, Iterator
from itertools import pairwise
from types import CodeType, FunctionType

#: Cross-entropy as the run weighs classes, looked up on ``self``; and what it is not, looked up elsewhere.
WEIGHED = frozenset({"cross_entropy", "cross_entropy_of_each"})
UNWEIGHED = WEIGHED | {"CrossEntropyLoss", "NLLLoss", "binary_cross_entropy_with_logits", "nll_loss"}

#: Hooks that are around all losses: one of a method's own hides what it does.
WHOLE = ("terms_of", "training_batches")
OWN_TERMS = ("own_terms", "own_terms_of_each")


#: Hooks with losses; and all that decides what training takes of a node's images.
LOSSES = ("loss", "image_losses", "own_terms", "own_terms_of_each", "phases")
TRAINING = frozenset(
    {
        "build_model",
        "forward",
        "received",
        "phases",
        "start_round",
        "start_epoch",
        "loss",
        "own_terms",
        "terms_of",
        "gather",
        "to_send",
        "finish_round",
        "class_prototypes",
        "class_means_of",
        "augmented_batches",
    }
)


def is_per_image(kind: type, base: type) -> bool:
    """Tell whether a class that overrides a hook of training overrides losses of single images or weights with it."""
    for each in kind.__mro__[: kind.__mro__.index(base)]:
        if vars(each).keys() & {"image_losses", "weight_losses", "own_terms_of_each"}:
            return True
        if vars(each).keys() & TRAINING:
            return False
    return True


def weighs_classes(kind: type, base: type, hooks: Collection[str] = LOSSES) -> bool:
    """Tell whether each of some hooks that a class overrides classifies by ``self.cross_entropy`` alone.

    Its own methods that a hook calls count as part of it, and so does what the base class does for the hook. ``phases``
    must do so only where it gives a phase of classes a loss. Terms next to cross-entropy need not classify.

    Args:
        kind: The class.
        base: The one that all of its kind are made of, whose hooks weigh classes.
        hooks: Names of methods that return losses.
    """
    if any(getattr(kind, hook) is not getattr(base, hook, None) for hook in WHOLE if hasattr(base, hook)):
        return False
    for each in kind.__mro__[: kind.__mro__.index(base)]:
        for hook in vars(each).keys() & {*hooks}:
            on_self, others = _behind(vars(each)[hook], kind, base)
            classifies = "loss" in others and "classes" not in others if hook == "phases" else hook not in OWN_TERMS
            if others & UNWEIGHED or (classifies and not on_self & {*WEIGHED, *hooks}):
                return False
    return True


def looks_up(kind: type, base: type, names: Collection[str]) -> bool:
    """Tell whether the code of a class, as far as it is not that of ``base``, looks up one of some names."""
    return any(name in names for code in _codes(kind, base) for _, name in _looked_up(code, {}))


def reads_labels(kind: type, base: type) -> bool:
    """Tell whether the code of a class does more with labels than to hand them to a loss, as its last argument.

    Labels are what it looks up as ``.y``. A loss takes labels of any form; what else is done with them takes each for
    the class of an image.
    """
    for code in _codes(kind, base):
        steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG")]
        for step, after in pairwise(steps):
            if step.opname == "LOAD_ATTR" and step.argval == "y" and after.opname != "CALL":
                return True
    return False


def _codes(kind: type, base: type) -> Iterator[CodeType]:
    """Yield the code of all methods of a class that are not those of ``base``, and what is defined in them."""
    for each in kind.__mro__[: kind.__mro__.index(base)]:
        left = [
            function.__code__ for value in vars(each).values() if isinstance(function := _plain(value), FunctionType)
        ]
        while left:
            code = left.pop()
            yield code
            left += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _plain(value: object) -> object:
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _behind(hook: object, kind: type, base: type) -> tuple[set[str], set[str]]:
    """Return the names that a method and the class's own methods behind it look up: on ``self``, elsewhere."""
    on_self: set[str] = set()
    others: set[str] = set()
    left = [hook]
    while left:
        function = left.pop()
        if not isinstance(function, FunctionType):
            continue
        for of_self, name in _looked_up(function.__code__, function.__globals__):
            known = on_self if of_self else others
            if of_self and name not in known and getattr(kind, name, None) is not getattr(base, name, None):
                left.append(getattr(kind, name, None))
            known.add(name)
    return on_self, others


def _looked_up(code: CodeType, known: dict[str, object]) -> Iterator[tuple[bool, str]]:
    """Yield each name that code looks up or gives by keyword, with whether it does so on ``self`` or ``super()``."""
    before = ""
    for step in dis.get_instructions(code):
        if step.opname.endswith("LOAD_FAST") and isinstance(step.argval, tuple):  # two at a time, since Python 3.13
            before = step.argval[-1]
        if not isinstance(step.argval, str):
            continue
        if step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")):
            yield before in ("self", "super"), step.argval
        elif step.opname == "LOAD_GLOBAL":
            yield False, getattr(known.get(step.argval), "__name__", step.argval)
        before = step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _looked_up(constant, known)
        elif isinstance(constant, tuple):
            yield from ((False, name) for name in constant if isinstance(name, str))
