"""``fedshift cite``: BibTeX of what runs use.

A method's entry is in its own file (``cite``), others are in references.bib; citations.yaml says what uses them.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config import registry
from fedshift_app.config.files import CONF
from fedshift_core import json_text
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.yaml_files import read_yaml

ENTRIES, USES = CONF / "references.bib", CONF / "citations.yaml"
_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n.*?^\}$", re.MULTILINE | re.DOTALL)

ON = "on"  # in citations.yaml: any number above 0


class Citations:
    """Collects what is used.

    Attributes:
        used: Why each entry is cited.
        unknown: What is used and has no entry.
    """

    def __init__(self) -> None:
        self.used: dict[str, dict[str, None]] = {}
        self.unknown: dict[str, None] = {}
        self._uses = uses()

    def add_method(self, name: str) -> None:
        """Add the papers of a method."""
        method = registry.known(name)
        own = [name] if method is not None and method.cite else None
        self._add(own if method is None or method.cites is None else method.cites, f"method {name}")

    def add_dataset(self, name: str, domains: Iterable[str] = ()) -> None:
        """Add the papers of a data set, and of its domains where they are data sets of their own."""
        self._add(self._uses["datasets"].get(name), f"data set {name}")
        of_domain = self._uses["domains"].get(name, {})
        for domain in domains or of_domain:
            self._add(of_domain.get(domain, ()), f"domain {domain}")

    def add_network(self, name: str) -> None:
        """Add the papers of a network and its library."""
        matches = [keys for pattern, keys in self._uses["networks"].items() if fnmatch.fnmatchcase(name, pattern)]
        self._add([key for keys in matches for key in keys] if matches else None, f"network {name}")

    def add_run(self, config: Mapping[str, Any]) -> None:
        """Add all that a run uses, by its resolved configuration, in sections."""
        self.add_method(str(config["method"]["name"]))
        dataset = config["dataset"]
        of = dataset["name"] if dataset["name"] in self._uses["datasets"] else dataset.get("of") or dataset["name"]
        self.add_dataset(str(of), [*dataset["domains"], str(dataset.get("public"))])
        for network in config["model"]["per_node"] or [config["model"]["name"]]:
            self.add_network(str(network))
        for key, by_value in self._uses["settings"].items():
            for value in _values(config, key.split(".")):
                is_on = ON in by_value and isinstance(value, int | float) and value > 0
                text = ON if is_on else json_text.text_of(value).strip('"')
                if text in by_value:
                    self._add(by_value[text], f"{key}={value if is_on else text}")

    def bibtex(self) -> str:
        """Return the entries, each with a comment that says what uses it, and comments on what has no entry."""
        for key in self._uses["always"]:
            self._add([key], "software")
        known = entries()
        parts = [f"% {plain(', '.join(why), MOST_NAME * len(why))}\n{known[key]}" for key, why in self.used.items()]
        parts += [f"% no entry: {plain(what, 2 * MOST_NAME)}" for what in self.unknown]
        return "\n\n".join(parts)

    def _add(self, keys: Sequence[str] | None, why: str) -> None:
        if keys is None:
            self.unknown[why] = None
        for key in keys or ():
            self.used.setdefault(key, {})[why] = None


@functools.cache
def entries() -> dict[str, str]:
    """Return the entries by key, as text: those of methods in the order of lists, then the others."""
    texts = [method.cite for _, method in registry.METHODS.items()] + [ENTRIES.read_text(encoding="utf-8")]
    return {found[1]: found[0] for text in texts for found in _ENTRY.finditer(text)}


@functools.cache
def uses() -> dict[str, Any]:
    """Return which data sets, networks and settings use which entries."""
    return read_yaml(USES)


def of_runs(paths: Sequence[Path]) -> tuple[Citations, list[str]]:
    """Return what finished runs use, and a line for each run that cannot be read.

    Raises:
        ConfigError: If no run is finished, or a named one cannot be read.
    """
    from fedshift.lab.tables.results import loading  # imports torch: only where runs are read

    given = loading.read(paths)
    citations = Citations()
    for run in given.runs:
        citations.add_run(run.resolved.model_dump(mode="json"))
    return citations, list(given.unreadable)


def add_named(citations: Citations, methods: str, datasets: str, networks: str) -> None:
    """Add methods, data sets and networks by their names, with commas between them.

    Raises:
        ConfigError: If a name is unknown; the message lists those there are.
    """
    from fedshift_clients.models.catalog import NETWORKS
    from fedshift_datasets import catalog

    for option, names, known, add in (
        ("--method", methods, registry.METHODS, citations.add_method),
        ("--dataset", datasets, catalog.DATASETS, citations.add_dataset),
        ("--network", networks, NETWORKS, citations.add_network),
    ):
        for name in filter(None, map(str.strip, names.split(","))):
            known.named(name, option)
            add(name)


def _values(section: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield the values of a dotted key; a list of sections has several."""
    if isinstance(section, list):
        for item in section:
            yield from _values(item, keys)
    elif not keys:
        yield section
    elif isinstance(section, Mapping) and keys[0] in section:
        yield from _values(section[keys[0]], keys[1:])
