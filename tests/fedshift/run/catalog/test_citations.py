"""`fedshift cite`: each method, data set and network has an entry that BibTeX reads; runs cite what they use."""

import itertools
import re
from pathlib import Path
from typing import Any

import yaml
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli
from fedshift.cli import citations
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.packages import WEIGHTS
from fedshift_core.extensions import OURS
from fedshift_datasets.catalog import DATASETS, of_users

TEXT = "\n".join(citations.entries().values())


def parsed(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Read BibTeX, a field a line: kind and fields by key; fails on what BibTeX would refuse."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    rest = re.sub(r"^%.*\n?", "", text, flags=re.M)
    for entry in re.finditer(r"@([a-z]+)\{([A-Za-z0-9-]+),\n((?:  [a-z]+ = \{.*\},\n)+)\}\n?", rest):
        fields = re.findall(r"  ([a-z]+) = \{(.*)\},\n", entry[3])
        assert len(dict(fields)) == len(fields) and entry[2] not in found, entry[2]
        for _, value in fields:
            depths = list(itertools.accumulate({"{": 1, "}": -1}.get(letter, 0) for letter in value))
            assert min(depths) == depths[-1] == 0, value
        found[entry[2]] = entry[1], dict(fields)
        rest = rest.replace(entry[0], "", 1)
    assert not rest.strip(), rest[:60]
    return found


PARSED = parsed(TEXT)


def test_all_keys_that_are_named_are_there_and_all_entries_are_named() -> None:
    uses = citations.uses()
    named = {*uses["always"]}
    for table in (uses["datasets"], uses["networks"], *uses["domains"].values(), *uses["settings"].values()):
        named |= {key for keys in table.values() for key in keys}
    for name, method in registry.METHODS.items():
        assert set(parsed(method.cite)) == ({name} if method.cite else set())
        named |= {name} if method.cite and method.cites is None else {*(method.cites or ())}
    assert set(PARSED) == named
    assert set(uses["datasets"]) == set(ours(DATASETS))


def ours(kind: Any) -> list[str]:
    return [name for name in kind if kind.origin(name) == OURS]


def test_each_method_data_set_and_packaged_network_has_an_entry() -> None:
    packaged = [WEIGHTS[weights].network for weights in ours(WEIGHTS)]
    for add, names in (
        ("add_method", ours(registry.METHODS)), ("add_dataset", ours(DATASETS)),
        ("add_network", [*ours(NETWORKS), *packaged, "torchvision:resnet18"]),
    ):  # fmt: skip
        for name in names:
            cited = citations.Citations()
            getattr(cited, add)(name)
            assert not cited.unknown and bool(cited.used) == (name not in ("local", *of_users())), name


def test_each_method_with_a_paper_has_one_reference_in_citation_cff() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    for name in ours(registry.METHODS):
        years, venue = [str(one["year"]) for one in cited if name in one["keywords"]], registry.get(name).venue
        assert len(years) == (venue != "-"), name
        assert not years or venue.startswith("arXiv") or years[0] in venue, name


def keys_of(*settings: str, **flat: Any) -> list[str]:
    config = resolve({"experiment": "handwritten", "set": " ".join(settings)} | flat)
    cited = citations.Citations()
    cited.add_run(config.model_dump(mode="json"))
    parsed(cited.bibtex())
    return list(cited.used)


def test_a_run_cites_what_it_uses_and_nothing_else() -> None:
    always = ["fedshift", "flower"]
    assert keys_of(method="fpl") == ["fpl", "finch", "optdigits", "fedicon", *always]
    assert keys_of("adapt.name=tent", "model.name=cnn_bn") == ["fedavg", "optdigits", "fedicon", "tent", *always]
    f2dc = keys_of("aggregation.weights=ga", method="f2dc")
    assert f2dc == ["f2dc", "optdigits", "fedicon", "ga", *always]
    more = keys_of("server.optimizer=fedadam", "aggregation.robust=krum", "shift.name=corruption")
    assert more == ["fedavg", "optdigits", "fedicon", "krum", "fedopt", "corruptions", *always]
    terms = keys_of("modules=[within-domains] modules.within-domains.irm=1.0 allocation.mixing=0.5")
    assert terms == ["fedavg", "optdigits", "fedicon", "domainbed", "irm", *always]
    digits = {"dataset": "digits", "data-dir": "nowhere"}
    assert keys_of("dataset.domains=[mnist,usps]", **digits) == ["fedavg", "mnist", "usps", "fedicon", *always]
    resnets = keys_of("model.name=resnet10", "dataset.domains=[svhn,syn]", **digits)
    assert resnets == ["fedavg", "svhn", "syn-mnistm", "resnet", *always]


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["cite", *map(str, arguments)])
    return result.exit_code, result.output, str(result.exception or "")


def test_the_command(tmp_path: Path) -> None:
    code, out, _ = call("--method", "fpl,f2dc")
    assert code == 0 and list(parsed(out)) == ["fpl", "finch", "f2dc", "fedshift", "flower"]

    code, out, _ = call(ROOT / "docs" / "results" / "pacs-pretrained", "--network", "resnet18")
    keys = list(parsed(out))
    assert code == 0 and {"i2pfl", "scaffold", "fedprox", "pacs", "efficientnet", "timm", "imagenet", "resnet"} <= {
        *keys
    }
    assert "% method fedavg, method ga\n@inproceedings{fedavg," in out
    assert call()[::2] == (1, "cite: name runs, or --method, --dataset or --network")
    code, _, error = call("--method", "fpll")
    assert code == 1 and error.startswith("--method: unknown method 'fpll'; there are ") and "did you mean fpl" in error
    assert call("--dataset", "packs")[2].startswith("--dataset: unknown dataset 'packs'")
    assert call("--network", "my_net")[2].startswith("--network: ")
