"""A site's name, as `fedshift init` takes it, becomes a node's folder, key and configuration."""

from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from datasets.sets import folders
from fedshift.deploy import exporting
from fedshift.launch import credentials
from fedshift_core.limits import MOST_NAME

#: Names that a site may have.
SITES = (
    "scan",
    "art_painting",
    "Köln Süd",
    "Große Straße",
    "São Paulo (A)",
    "a & b + c",
    "東京",
    "Ω",
    "x" * MOST_NAME,
    "ä" * (MOST_NAME // 2),
)


@pytest.mark.parametrize("site", SITES)
def test_every_sites_name_makes_a_node(tmp_path: Path, site: str) -> None:
    folders.check_domain(site)
    name = exporting.node_name(3, site)
    assert name.startswith("node-3") and name.isascii()
    assert credentials.NODE_NAME.fullmatch(name)
    private, public = credentials.make_node(tmp_path / "keys", name)
    assert private.is_file() and public.read_text().rstrip().endswith(name)
    given = parse_config_args([exporting.NodeFolder(tmp_path / name, site, 3).node_config])
    assert (given["domain"], given["data-dir"], given["partition-id"]) == (site, str(tmp_path / name), 3)


def test_plain_names_stay_and_none_is_like_another() -> None:
    assert exporting.node_name(0, "art_painting") == "node-0-art_painting"
    assert exporting.node_name(1, "Köln Süd") == "node-1-Koln-Sud"
    assert exporting.node_name(2, "東京") == "node-2"
    assert len({exporting.node_name(index, site) for index, site in enumerate(SITES)}) == len(SITES)
