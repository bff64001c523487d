"""``fedshift export --compose``: its services are those of docker/compose.yaml, and each node sees its own folder."""

import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT, refusal_of

from fedshift.run.launch.credentials import Credentials, check_private
from fedshift.site.deploy import compose, exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

DEMO: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "nodes"
    config = resolve({"experiment": "handwritten", "set": "allocation.share=0.02 dataset.domains=[scan,sketch]"})
    nodes = exporting.export(config, 2, folder)
    assert compose.write(config, nodes, folder) == folder / "compose.own.yaml"
    return folder


def services(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((folder / "compose.own.yaml").read_text())
    assert content["networks"] == {"federation": {"internal": True}}
    found: dict[str, Any] = content["services"]
    return found


def test_the_services_are_those_of_the_demo(made: Path) -> None:
    own = services(made)
    assert list(own) == ["superlink", "register", "run", "node-0-scan", "node-1-sketch"]
    for name, service in own.items():
        like = DEMO["node-scan" if name.startswith("node-") else name]
        for key in (
            "image", "init", "read_only", "cap_drop", "security_opt", "mem_limit", "cpus", "restart", "network_mode",
            "networks",
        ):  # fmt: skip
            assert service.get(key) == like.get(key), (name, key)
        assert "ports" not in service and "privileged" not in service
        if "healthcheck" in like:
            assert {
                k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in service["healthcheck"].items()
            } == {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in like["healthcheck"].items()}
    assert own["superlink"]["command"] == DEMO["superlink"]["command"]
    assert own["register"]["command"] == DEMO["register"]["command"] and own["run"]["command"] == DEMO["run"]["command"]
    assert own["register"]["depends_on"] == DEMO["register"]["depends_on"]
    assert own["node-0-scan"]["depends_on"] == DEMO["node-scan"]["depends_on"]
    waits = own["run"]["depends_on"]
    assert {name: wait["condition"] for name, wait in waits.items()} == {
        "register": "service_completed_successfully", "node-0-scan": "service_started",
        "node-1-sketch": "service_started",
    }  # fmt: skip


def test_a_node_is_started_as_the_demos_script_starts_one(made: Path) -> None:
    script = (ROOT / "docker" / "supernode.sh").read_text()
    for index, domain in enumerate(("scan", "sketch")):
        command = services(made)[f"node-{index}-{domain}"]["command"]
        options = dict(zip(command[2::2], command[3::2], strict=True))
        assert command[:2] == ["fedshift", "supernode"] and options["--policy"] == "${NODE_POLICY:-strict}"
        for option in ("--root-certificates", "--auth-supernode-private-key", "--superlink", "--port"):
            assert f"{option} {options[option]} " in script
        about = f'domain="{domain}" data-dir="/var/fedshift/node/images" partition-id={index} threads=1'
        assert options["--node-config"] == about
        # By default `fedshift supernode` takes any free port, where no health check would find it.
        for service in (services(made)[f"node-{index}-{domain}"], DEMO[f"node-{domain}"]):
            assert f"127.0.0.1:{options['--port']}/health" in service["healthcheck"]["test"][-1]


def test_each_mounted_place_is_there_and_a_node_sees_no_other_node(made: Path) -> None:
    for name, service in services(made).items():
        for volume in service["volumes"]:
            source, place, *mode = volume.split(":")
            assert (made / source).exists(), volume
            assert place.startswith("/var/fedshift/")
            assert mode == ["ro"] or source in ("./database", "./runs", f"./state/{name}")
    nodes = {name: service for name, service in services(made).items() if name.startswith("node-")}
    for name, service in nodes.items():
        seen = " ".join(service["volumes"])
        assert not any(other in seen for other in nodes if other != name) and "superlink" not in seen
        assert (made / name).is_dir() and list((made / name).glob("*_train.npz"))
    assert [name for name, service in services(made).items() if "./superlink" in str(service["volumes"])] == [
        "superlink"
    ]


def test_keys_are_private_and_the_authoritys_is_gone(made: Path) -> None:
    credentials = Credentials(made / "superlink")
    assert credentials.superlink_options() and not credentials.ca_key.exists()
    assert (made / "public" / "ca.crt").read_bytes() == credentials.ca_certificate.read_bytes()
    for name in ("node-0-scan", "node-1-sketch"):
        check_private(made / "keys" / f"{name}.key")
        assert (made / "public" / f"{name}.pub").is_file() and not (made / "keys" / f"{name}.pub").exists()
    user = f"{os.getuid()}:{os.getgid()}"
    for service in services(made).values():
        assert service["user"] == f"${{FEDSHIFT_USER:-{user}}}"
        assert service["tmpfs"][1] == "/var/fedshift:mode=1777"  # whoever FEDSHIFT_USER is, and as the image has it
    assert "chmod 1777 fedshift" in (ROOT / "docker" / "Dockerfile").read_text()
    assert stat.S_IMODE((made / "runs").stat().st_mode) == 0o700


def test_the_run_is_the_experiment_with_its_number_of_nodes(made: Path) -> None:
    given = services(made)["run"]["environment"]["RUN_CONFIG"]
    assert given == '${RUN_CONFIG:-experiment="/var/fedshift/experiment.yaml" set="federation.min_nodes=2"}'
    assert "./experiment.yaml:/var/fedshift/experiment.yaml:ro" in services(made)["superlink"]["volumes"]
    again = resolve({"experiment": str(made / "experiment.yaml"), "set": "federation.min_nodes=2"})
    first = resolve({"experiment": "handwritten", "set": "allocation.share=0.02 dataset.domains=[scan,sketch]"})
    assert again.dataset == first.dataset and again.train == first.train and again.federation.min_nodes == 2


def test_a_sign_of_the_shell_in_a_sites_name_stays_what_it_is() -> None:
    node = NodeFolder(Path("nodes/node-0-x"), "a$b", 0)
    command = yaml.safe_load(compose.composed([node]))["services"]["node-0-x"]["command"]
    assert 'domain="a$$b"' in command[-1]
    assert dataclasses.replace(node, domain="a").node_config.startswith('domain="a"')


def test_what_no_container_has_is_refused(tmp_path: Path) -> None:
    config = resolve({"experiment": "handwritten"})
    weights = config.model_copy(update={"model": config.model.model_copy(update={"weights": "/home/w.pth"})})
    assert "model.weights='/home/w.pth' lies on this machine" in refusal_of(ConfigError, compose.check, weights)
    plugins = config.model_copy(update={"plugins": ("mine.py",)})
    assert "plugins are for simulation only" in refusal_of(ConfigError, compose.check, plugins)
    compose.check(config)


def test_the_command_enters_a_folder_of_any_name() -> None:
    assert "cd '/x/läufe 😀' && docker compose -f compose.own.yaml up" in compose.after(
        Path("/x/läufe 😀/compose.own.yaml")
    )
