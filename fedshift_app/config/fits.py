"""Methods that fit secure sums and mechanisms of privacy, as tables of the guide have it."""

from fedshift_app.config import registry
from fedshift_app.config.needs import why_not
from fedshift_core.extensions import OURS
from fedshift_core.features import FEATURES
from fedshift_core.registry import Method


def fits_with(method: Method) -> str:
    """Return whether a method fits secure sums: ``yes``, ``no``, or the first of its words that does it."""
    if not why_not("sums", method):
        return "yes"
    for name, field in method.params_class().model_fields.items():
        for value in getattr(field.annotation, "__args__", (True, False) if field.annotation is bool else ()):
            if not why_not("sums", method, **{name: value}):
                return f"with method.{name}={str(value).lower()}"
    return "no"


def mechanisms(method: Method) -> tuple[str, ...]:
    """Return the values of ``privacy.name`` that fit a method."""
    needs = FEATURES["privacy"].needs
    return tuple(str(value) for need in needs for value in need.values if not why_not(need.fact, method))


def privacy() -> str:
    """Return what is sent for each of FedShift's own methods in addition to weights.

    What nodes send stands under the word for what it tells of their images (``fedshift_core.disclosure``). The last
    column says whether a server need know no more of it than sums over nodes (``federation.secure_sums``).
    """
    rows = [
        (
            registry.marked(m.name),
            f"numbers: {m.numbers}" if m.numbers else registry.contributed(m),
            m.down,
            m.private,
            ", ".join(mechanisms(m)) or "-",
            fits_with(m),
        )
        for m in registry.listed()
        if registry.METHODS.origin(m.name) == OURS
    ]
    head = (
        "method",
        "a node sends in addition to weights",
        "it is sent in addition",
        "stays on the node",
        "`privacy.name`",
        "secure sums",
    )
    return registry.table(head, rows)
