"""``fedshift supernode --policy`` and ``fedshift policy``: a policy handed to a SuperNode, written, and in words."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedshift.run import columns as tables
from fedshift.site.deploy import supernode
from fedshift.site.deploy.supernode import NODE_CONFIG
from fedshift_app.config import registry
from fedshift_app.node import ledger, policy, policy_rules
from fedshift_app.node.policy import BUILT_IN, Loaded, Policy
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural
from fedshift_strategies.contributions import behind

_QUOTES = "'\"\\"
_HEAD = """\
# What the owner of this node allows. Read docs/deploy/policy.md; try: fedshift policy explain FILE
# Start the node with: fedshift supernode --policy FILE ...
"""


def typed(source: str) -> str:
    """Return a built-in policy's name, or the absolute path of a typed file."""
    return source if source in BUILT_IN else str(Path(source).expanduser().absolute())


def with_policy(options: Sequence[str], loaded: Loaded) -> list[str]:
    """Return the options of ``flower-supernode`` with a policy in its ``--node-config``.

    Raises:
        ConfigError: If the node's configuration names one already, is a file, is given twice or cannot be read, or the
            path has quotes.
    """
    if any(letter in loaded.source for letter in _QUOTES):
        raise ConfigError(f"--policy {shown(loaded.source, WHOLE_PATH)}: a path with quotes or a backslash")
    if policy.POLICY in supernode.node_config(options):
        raise ConfigError(f"{NODE_CONFIG} names a {policy.POLICY} already: leave it out, or leave out --policy")
    more = f'{policy.POLICY}="{loaded.source}" {policy.POLICY_SHA256}="{loaded.sha256}"'
    changed, given = [*options, NODE_CONFIG, more], ""
    for i, option in enumerate(options):
        name, equals, value = option.partition("=")
        if len(name) >= len("--n") and NODE_CONFIG.startswith(name):  # Flower takes its beginnings, too
            place = i if equals else i + 1
            given = value if equals else "".join(options[place : place + 1])
            joined = f"{name}={given} {more}" if equals else f"{given} {more}"
            changed = [*options[:place], joined, *options[place + 1 :]]
    if given.endswith(".toml"):
        raise ConfigError(f"{NODE_CONFIG} {given}: write {policy.POLICY} into that file, or give key=value pairs")
    if supernode.node_config(changed).get(policy.POLICY) != loaded.source:  # as with a quote that is not closed
        raise ConfigError(
            f"{NODE_CONFIG} {as_found(given)}: cannot be read; expected are pairs such as "
            "'domain=\"scan\" partition-id=0'"
        )
    return changed


# --- a file to begin with -----------------------------------------------------------------------------


def template(start: Policy) -> str:
    """Return a policy as YAML, each key with what it means; keys without a value are there as comments."""
    lines = [_HEAD]
    for name, field in Policy.model_fields.items():
        lines += textwrap.wrap(str(field.description), 110, initial_indent="# ", subsequent_indent="#   ")
        value = getattr(start, name)
        section = _section(field)
        if isinstance(value, BaseModel):
            lines += [f"{name}:", *(f"  {key}: {_yaml(number)}" for key, number in value)]
        else:
            absent = value is None and field.default is None
            lines += _example(name, section) if absent and section is not None else [f"{name}: {_yaml(value)}"]
        lines.append("")
    return "\n".join(lines)


def _example(name: str, section: type[BaseModel]) -> list[str]:
    """Return a section that is absent as comments, with numbers to change."""
    lines = [f"# {name}:"]
    for key, field in section.model_fields.items():
        value = {"epsilon": 8, "nodes": 3}.get(key, field.default)
        lines.append(f"#   {key}: {_yaml(value)}  # {field.description}")
    return lines


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a section that may be absent; None of any other key."""
    kinds = getattr(field.annotation, "__args__", ())
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _yaml(value: object) -> str:
    """Return a value as YAML reads it."""
    if isinstance(value, tuple):
        return policy.ANY if value == (policy.ANY,) else f"[{', '.join(value)}]"
    if isinstance(value, float) and 0 < value < 1e-3:
        return f"{value:.1e}"  # YAML takes 1e-05 for a word
    return value if isinstance(value, str) else json.dumps(value)


# --- in words -------------------------------------------------------------------------------------------


def explained(loaded: Loaded) -> list[str]:
    """Return in words what a policy allows, key by key, and what is left of its budget."""
    lines = [f"policy {loaded}", *tables.facts(rows(loaded.policy))]
    return [*lines, *_spent(loaded.policy), *_kept(loaded.policy)]


def rows(allowed: Policy) -> list[tuple[str, str]]:
    """Return each key of a policy with what it allows."""
    texts = {
        "methods": _names(allowed.methods) + _without(allowed),
        "networks": _names(allowed.networks),
        "contributions": "weights alone" if not allowed.contributions else _names(allowed.contributions),
        "features": "none of other packages" if not allowed.features else _names(allowed.features),
        "weights": "of any run" if allowed.weights == "any" else "only inside secure sums; other runs are refused",
        "least_images": _least(allowed.least_images),
        "figures": "confusion matrices, histograms and calibration leave" if allowed.figures else "none leave the node",
        "statistics": "those of training images leave once in a run" if allowed.statistics else "none leave the node",
        "image_statistics": "those of single images leave once in a run" if allowed.image_statistics else "none leave",
        "largest_in": _bytes(allowed.largest_in),
        "largest_out": _bytes(allowed.largest_out),
        "rounds_per_day": "any number" if allowed.rounds_per_day is None else f"at most {allowed.rounds_per_day}",
    }
    parts, scores = allowed.partition, allowed.scores
    texts["partition"] = _listed(parts.stated()) if parts else "as the first run has it"
    texts["scores"] = "to any number of questions"
    if scores is not None:
        most, runs = (number or "any number of" for number in (scores.per_run, scores.runs_per_day))
        texts["scores"] = f"to {most} questions a run, in {runs} runs a day"
    noise, budget, sums = allowed.privacy, allowed.budget, allowed.secure_sums
    texts["privacy"] = (
        f"{noise.name} with at most epsilon {noise.epsilon:g} at delta {noise.delta:g} or less in a run"
        if noise
        else "no noise is required"
    )
    texts["budget"] = (
        f"at most epsilon {budget.epsilon:g} at delta {budget.delta:g} over all runs; a run without noise is refused"
        if budget
        else "no limit"
    )
    texts["secure_sums"] = "not required"
    if sums:
        texts["secure_sums"] = f"required, over at least {plural(sums.nodes, 'node')}, effective {sums.least:g}"
    if sums and sums.trusted:
        texts["secure_sums"] += f", of {len(sums.trusted)} that are named by their keys"
    trusted = allowed.code.trusted if allowed.code else ()
    texts["code"] = f"a run of this node's own code{f', or of {len(trusted)} named by their hashes' if trusted else ''}"
    return [(key, texts[key]) for key in Policy.model_fields]


def refused_methods(allowed: Policy) -> Iterator[tuple[str, str]]:
    """Yield the methods that a policy refuses for what they send, with the reason."""
    for method in registry.listed():
        strategy = method.strategy_class()
        for name in strategy.contributes:
            if name in strategy.optional:
                continue
            if why := policy_rules.refuse_array(allowed, name, behind(strategy, name)):
                yield method.name, why
                break


def keys_table() -> str:
    """Return the keys of a policy as the Markdown table of docs/deploy/policy.md."""
    lines = ["| key | `strict` | `open` | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Policy.model_fields.items():
        values = (f"`{_cell(getattr(BUILT_IN[which], name))}`" for which in (policy.STRICT, policy.OPEN))
        lines.append(f"| `{name}` | {' | '.join(values)} | {field.description} |")
        section = _section(field)
        for key, part in section.model_fields.items() if section else ():
            default = (
                f"required in `{name}`" if part.is_required() else f"in `{name}` by default `{_yaml(part.default)}`"
            )
            lines.append(f"| `{name}.{key}` | | | {part.description} ({default}) |")
    return "\n".join(lines)


def _names(names: Sequence[str]) -> str:
    return "any" if tuple(names) == (policy.ANY,) else f"only {', '.join(names)}"


def _without(allowed: Policy) -> str:
    refused = [name for name, _ in refused_methods(allowed) if allowed.allows("methods", name)]
    return f", but {', '.join(refused)} (for what they send)" if refused else ""


def _least(least: int) -> str:
    if least == 1:
        return "numbers of any number of images leave"
    return (
        f"no class, count or score of fewer than {plural(least, 'image')} leaves; a class with fewer counts as absent"
    )


def _bytes(most: int | None) -> str:
    return "of any size" if most is None else f"at most {plural(most, 'byte', form=',')} ({most / 2**20:,.4g} MiB)"


def _cell(value: object) -> str:
    return f"{{{_listed(dict(value))}}}" if isinstance(value, BaseModel) else _yaml(value)


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in values.items())


def _kept(allowed: Policy) -> list[str]:
    """Return how the images of each ledger of this user are parted, and which ledger does not lie with its images."""
    lines = []
    for each in ledger.all_ledgers():
        book = each.read()
        images = shown(book.images, WHOLE_PATH)
        if parts := book.partition | (allowed.partition.stated() if allowed.partition else {}):
            lines.append(f"partition: {_listed(parts)}; images in {images}")
        if not each.with_images:
            lines.append(f"{images} cannot be written: a node with another state folder would spend again")
    return lines


def _spent(allowed: Policy) -> list[str]:
    """Return what each ledger of this user has spent of a budget."""
    budget = allowed.budget
    if budget is None:
        return []
    lines = []
    for book in (each.read() for each in ledger.all_ledgers()):
        spent, rounds = book.epsilon(budget.delta), sum(run.rounds for run in book.runs.values())
        lines.append(
            f"spent: epsilon {spent:.4g} of {budget.epsilon:g} in {plural(rounds, 'round')} of "
            f"{plural(len(book.runs), 'run')}, images in {shown(book.images, WHOLE_PATH)}"
        )
    return lines or ["spent: nothing yet"]
