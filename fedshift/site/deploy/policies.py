"""``fedshift supernode --policy`` and ``fedshift policy``: a policy handed to a SuperNode, written, and in words."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from pydantic.fields import FieldInfo

from fedshift.run import columns as tables
from fedshift.site.deploy import supernode
from fedshift.site.deploy.supernode import NODE_CONFIG
from fedshift_app.config import registry
from fedshift_app.node import ledger, policy, policy_rules
from fedshift_app.node.policy import BUILT_IN, Loaded, Policy, in_yaml, listed
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural

_HEAD = """\
# What the owner of this node allows. Read docs/deploy/policy.md; try: fedshift policy explain FILE
# Start the node with: fedshift supernode --policy FILE ...
"""


_EXAMPLES = {"epsilon": 8, "nodes": 3}  # of keys without a default


def typed(source: str) -> str:
    """Return a built-in policy's name, or the absolute path of a typed file."""
    return source if source in BUILT_IN else str(Path(source).expanduser().absolute())


def load(source: str) -> Loaded:
    """Read a policy that was typed.

    Raises:
        ConfigError: If it cannot be used.
    """
    return policy.load(typed(source))


def checked(source: str) -> str:
    """Return a line about a policy that a node would take."""
    return f"a policy: {load(source)}"


def with_policy(options: Sequence[str], loaded: Loaded) -> list[str]:
    """Return the options of ``flower-supernode`` with a policy in its ``--node-config``.

    Raises:
        ConfigError: If the node's configuration names one already, is a file, is given twice or cannot be read, or the
            path has quotes.
    """
    if policy.POLICY in supernode.node_config(options):
        raise ConfigError(f"{NODE_CONFIG} names a {policy.POLICY} already: leave it out, or leave out --policy")
    values, others = supernode.parsed(options, NODE_CONFIG)
    given = values.get(NODE_CONFIG, "")
    more = f'{policy.POLICY}="{loaded.source}" {policy.POLICY_SHA256}="{loaded.sha256}"'
    changed = [*others, NODE_CONFIG, f"{given} {more}".lstrip()]
    read = supernode.node_config(changed).get(policy.POLICY)
    if read != loaded.source or given.endswith(".toml"):  # a quote in either one; Flower would not read the file
        raise ConfigError(
            f"{NODE_CONFIG} {as_found(given)} cannot be read with --policy {shown(loaded.source, WHOLE_PATH)}; "
            f"expected are pairs such as 'domain=\"scan\" partition-id=0' (in a .toml write {policy.POLICY} yourself), "
            "and a path without quotes and backslashes"
        )
    return changed


# --- a file to begin with -----------------------------------------------------------------------------


def template(start: Policy) -> str:
    """Return a policy as YAML, each key with what it means; sections without a value are there as comments."""
    lines = [_HEAD]
    for name, field in Policy.model_fields.items():
        lines += textwrap.wrap(str(field.description), 110, initial_indent="# ", subsequent_indent="#   ")
        value, parts = getattr(start, name), parts_of(field)
        if value is None and field.default is None and parts:
            lines.append(f"# {name}:")
            for key, part in parts.items():
                lines.append(f"#   {key}: {in_yaml(_EXAMPLES.get(key, part.default))}  # {meaning(part)}")
        else:
            lines.append(f"{name}: {in_yaml(value)}")
        lines.append("")
    return "\n".join(lines)


def meaning(field: FieldInfo) -> str:
    """Return what a key means, on one line."""
    return " ".join(str(field.description).split())


def parts_of(field: FieldInfo) -> dict[str, FieldInfo]:
    """Return the keys of a section that may be absent; none of any other key."""
    kinds = getattr(field.annotation, "__args__", ())
    return next((kind.model_fields for kind in kinds if hasattr(kind, "model_fields")), {})


# --- in words -------------------------------------------------------------------------------------------


def explained(source: str) -> str:
    """Return what a policy allows, key by key with what it means, and what is left of its budget."""
    loaded = load(source)
    allowed, rows = loaded.policy, []
    refused = [
        each.name
        for each in registry.listed()
        if allowed.allows("methods", each.name) and policy_rules.refuse_method(allowed, each.strategy_class(), {})
    ]
    for name, field in Policy.model_fields.items():
        value = getattr(allowed, name)
        but = f", but {', '.join(refused)} (for what they send)" if name == "methods" and refused else ""
        rows.append((name, f"{in_yaml(value)}{but}: {field.description}"))
        for key, part in parts_of(field).items() if value is not None else ():
            rows.append((f"{name}.{key}", f"{in_yaml(getattr(value, key))}: {part.description}"))
    return "\n".join([f"policy {loaded}", *tables.facts(rows), *_kept(allowed)])


def _kept(allowed: Policy) -> list[str]:
    """Return what each ledger of this user has spent of a budget, and how its images are parted."""
    budget, lines = allowed.budget, []
    for each in ledger.all_ledgers():
        book = each.read()
        images = shown(book.images, WHOLE_PATH)
        if budget:
            spent, rounds = book.epsilon(budget.delta), sum(run.rounds for run in book.runs.values())
            lines.append(
                f"spent: epsilon {spent:.4g} of {budget.epsilon:g} in {plural(rounds, 'round')} of "
                f"{plural(len(book.runs), 'run')}, images in {images}"
            )
        if parts := book.partition | (allowed.partition.stated() if allowed.partition else {}):
            lines.append(f"partition: {listed(parts)}; images in {images}")
        if not each.with_images:
            lines.append(f"{images} cannot be written: a node with another state folder would spend again")
    return lines or (["spent: nothing yet"] if budget else [])
