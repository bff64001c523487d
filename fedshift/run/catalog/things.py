"""``fedshift datasets`` and ``fedshift experiments``: lists all, or describes one."""

import functools
import shlex
from collections import Counter
from collections.abc import Mapping

from fedshift.run.columns import facts
from fedshift_app.config import files, registry
from fedshift_app.config import resolving as configuration
from fedshift_app.config.layers import section_of
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models import packages
from fedshift_core.extensions import OURS
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets import catalog
from fedshift_datasets.base import Dataset

MOST_CLASSES = 40  # that are named
DRAWN = ("handwritten",)  # data sets that need no data-dir


def dataset_line(dataset: Dataset) -> str:
    """Return the line of a data set in a list."""
    if dataset.own is not None:
        return f"{dataset.title}; domains and classes from data-dir or from the configuration"
    return f"{dataset.title}; domains {', '.join(dataset.domains)}; {plural(len(dataset.classes), 'class', 'classes')}"


def dataset(name: str) -> str:
    """Return the description of a data set.

    Raises:
        ConfigError: If there is none of that name.
    """
    entry = catalog.get(name)
    origin = catalog.DATASETS.origin(name)
    own = entry.own is not None
    counts = ", ".join(f"{domain} {entry.counts[domain]:,}" for domain in entry.domains if domain in entry.counts)
    classes = ", ".join(entry.classes[:MOST_CLASSES]) + (", ..." if len(entry.classes) > MOST_CLASSES else "")
    users = [each for each in files.names("experiments") if section_of(_read(each), "dataset").get("name") == name]
    page = "docs/guide/own-data.md" if own else "docs/guide/datasets.md" if origin == OURS else ""
    rows = [
        ("from", "" if origin == OURS else origin),
        ("domains", "those of data-dir" if own else ", ".join(entry.domains)),
        ("tests only", ", ".join(sorted(entry.test_only))),
        ("classes", "those of data-dir" if own else f"{len(entry.classes)}: {classes}"),
        ("images", f"{entry.size} x {entry.size} pixels, or dataset.size; published: {counts or '-'}"),
        ("experiments", ", ".join(users)),
        ("page", files.doc_page(page) if page else ""),
        ("check", f"fedshift prepare {name} data-dir=DIR"),
    ]
    return "\n".join([f"{name}: {entry.title}", *facts(rows)])


@functools.cache
def _read(experiment: str) -> dict[str, object]:
    return read_yaml(configuration.experiment_file(experiment))


#: In place of weights in a package, which need not be installed for a list.
ANY_NETWORK = "model.name=resnet10 model.weights= model.freeze=none model.projection=0 model.precompute=off"


def experiments() -> list[str]:
    """Return a line for each experiment: its number of nodes, and the paper's table that it reproduces."""
    names = files.names("experiments")
    width = max(map(len, names))
    lines = []
    for name in names:
        content = _read(name)
        packaged = str(section_of(content, "model").get("weights", "")).startswith(packages.PREFIX)
        flat = {"experiment": name} | ({"set": ANY_NETWORK} if packaged else {})
        nodes = configuration.check_keys(flat).allocation.num_nodes()
        table = f" [{content['paper']}]" if content.get("paper") else ""
        lines.append(f"{name:<{width}} {'any' if nodes is None else nodes:>4} nodes  {content.get('title', '')}{table}")
    return lines


def experiment(name: str) -> str:
    """Return the description of an experiment, given by name or as a path to a YAML file.

    Raises:
        ConfigError: If there is none, or its file is wrong.
    """
    path = configuration.experiment_file(name)
    content = read_yaml(path)
    config = configuration.resolve({"experiment": name})
    train, model = config.train, config.model
    special, table = section_of(content, "methods"), str(content.get("paper") or "")
    draws = config.dataset.kind in DRAWN or config.dataset.data_dir
    rows = [
        ("file", shown(path)),
        ("stands for", table and f"{table}: fedshift compare RUNS --paper {shlex.quote(table)}"),
        ("data set", f"{config.dataset.name}: {', '.join(config.dataset.domains)}"),
        ("nodes", _nodes(config)),
        ("network", f"{model.name}, model.bn={model.bn}"),
        (
            "training",
            f"{plural(config.rounds, 'round')} of {plural(train.epochs, 'local epoch')}, batches of "
            f"{train.batch_size}, "
            f"{train.optimizer} with train.lr={train.lr:g}, momentum {train.momentum:g}, weight decay "
            f"{train.weight_decay:g}",
        ),
        ("method", registry.label(str(config.method["name"]))),
        ("sets for", "; ".join(f"{registry.label(method)}: {_keys(keys)}" for method, keys in special.items())),
        ("shift", "" if config.shift.name == "none" else f"shift.name={config.shift.name}"),
        ("run", f"fedshift run {name}" + ("" if draws else " data-dir=DIR") + " method=METHOD"),
    ]
    return "\n".join([f"{path.stem}: {content.get('title', '')}".rstrip(": "), *facts(rows)])


def _keys(value: object, above: str = "") -> str:
    """Return a section's dotted keys and values in a line."""
    if isinstance(value, Mapping):
        return ", ".join(_keys(inner, f"{above}{key}.") for key, inner in value.items())
    return f"{above.removesuffix('.')}={value}"


def _nodes(config: RunConfig) -> str:
    """Return the number of nodes of each domain."""
    allocation = config.allocation
    number = allocation.num_nodes()
    held_out = f"; held out: {', '.join(allocation.held_out)}" if allocation.held_out else ""
    if number is None:
        return f"any number (nodes=N), domains in turn{held_out}"
    dealt = Counter(allocation.deal(config.dataset.domains, number, config.seed))
    return f"{number}: {', '.join(f'{domain} {count}' for domain, count in dealt.items())}{held_out}"
