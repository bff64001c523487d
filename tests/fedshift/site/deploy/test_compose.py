"""``fedshift export --compose``: its services are those of docker/compose.yaml, and each node sees its own folder."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused
from support import ROOT

from fedshift.run.launch.credentials import Credentials, check_private
from fedshift.site.deploy import compose, exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

DEMO: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
GIVEN = {"experiment": "handwritten", "set": "allocation.share=0.02 dataset.domains=[scan,sketch]"}
NODES = {"node-0-scan": "node-scan", "node-1-sketch": "node-sketch"}
ALIKE = ("image", "init", "read_only", "cap_drop", "security_opt", "mem_limit", "cpus", "restart", "network_mode",
         "networks")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "nodes"
    config = resolve(GIVEN)
    return compose.write(config, exporting.export(config, 2, folder), folder).parent


@pytest.fixture(scope="module")
def services(made: Path) -> dict[str, Any]:
    content = yaml.safe_load((made / "compose.own.yaml").read_text())
    assert content["networks"] == {"federation": {"internal": True}}
    return dict(content["services"])


def test_the_services_are_those_of_the_demo(services: dict[str, Any]) -> None:
    assert list(services) == ["superlink", "register", "run", *NODES]
    for name, own in services.items():
        like = DEMO[NODES.get(name, name)]
        assert [own.get(key) for key in ALIKE] == [like.get(key) for key in ALIKE], name
        assert "ports" not in own and "privileged" not in own
        mine, theirs = (
            {
                key: " ".join(value) if isinstance(value, list) else value
                for key, value in one.get("healthcheck", {}).items()
            }
            for one in (own, like)
        )
        assert mine == theirs
        assert name in NODES or own["command"] == like["command"]
        if name in ("register", "node-0-scan"):
            assert own.get("depends_on") == like.get("depends_on")
    waits = {name: wait["condition"] for name, wait in services["run"]["depends_on"].items()}
    assert waits == {"register": "service_completed_successfully"} | dict.fromkeys(NODES, "service_started")


def test_a_node_is_started_as_the_demos_script_starts_one(services: dict[str, Any]) -> None:
    script = (ROOT / "docker" / "supernode.sh").read_text()
    for index, (name, like) in enumerate(NODES.items()):
        command = services[name]["command"]
        options = dict(zip(command[2::2], command[3::2], strict=True))
        assert command[:2] == ["fedshift", "supernode"] and options["--policy"] == "${NODE_POLICY:-strict}"
        for option in ("--root-certificates", "--auth-supernode-private-key", "--superlink", "--port"):
            assert f"{option} {options[option]} " in script
        about = f'domain="{like[5:]}" data-dir="/var/fedshift/node/images" partition-id={index} threads=1'
        assert options["--node-config"] == about
        # By default `fedshift supernode` takes any free port, where no health check would find it.
        for service in (services[name], DEMO[like]):
            assert f"127.0.0.1:{options['--port']}/health" in service["healthcheck"]["test"][-1]


def test_each_mounted_place_is_there_and_a_node_sees_no_other_node(made: Path, services: dict[str, Any]) -> None:
    for name, service in services.items():
        for volume in service["volumes"]:
            source, place, *mode = volume.split(":")
            assert (made / source).exists() and place.startswith("/var/fedshift/"), volume
            assert mode == ["ro"] or source in ("./database", "./runs", f"./state/{name}")
        seen = " ".join(service["volumes"])
        assert name not in NODES or not any(other in seen for other in NODES if other != name)
        assert ("./superlink" in seen) is (name == "superlink")
        assert name not in NODES or list((made / name).glob("*_train.npz"))


def test_keys_are_private_and_the_authoritys_is_gone(made: Path, services: dict[str, Any]) -> None:
    credentials = Credentials(made / "superlink")
    assert credentials.superlink_options() and not credentials.ca_key.exists()
    assert (made / "public" / "ca.crt").read_bytes() == credentials.ca_certificate.read_bytes()
    for name in NODES:
        check_private(made / "keys" / f"{name}.key")
        assert (made / "public" / f"{name}.pub").is_file() and not (made / "keys" / f"{name}.pub").exists()
    for service in services.values():
        assert service["user"] == f"${{FEDSHIFT_USER:-{os.getuid()}:{os.getgid()}}}"
        assert service["tmpfs"][1] == "/var/fedshift:mode=1777"  # whoever FEDSHIFT_USER is, and as the image has it
    assert "chmod 1777 fedshift" in (ROOT / "docker" / "Dockerfile").read_text()
    assert stat.S_IMODE((made / "runs").stat().st_mode) == 0o700


def test_the_run_is_the_experiment_with_its_number_of_nodes(made: Path, services: dict[str, Any]) -> None:
    given = services["run"]["environment"]["RUN_CONFIG"]
    assert given == '${RUN_CONFIG:-experiment="/var/fedshift/experiment.yaml" set="federation.min_nodes=2"}'
    assert "./experiment.yaml:/var/fedshift/experiment.yaml:ro" in services["superlink"]["volumes"]
    again, first = resolve({"experiment": str(made / "experiment.yaml")}), resolve(GIVEN)
    assert again.dataset == first.dataset and again.train == first.train


def test_a_sign_of_the_shell_in_a_name_stays_what_it_is_and_what_no_container_has_is_refused() -> None:
    node = NodeFolder(Path("nodes/node-0-x"), "a$b", 0)
    assert 'domain="a$$b"' in yaml.safe_load(compose.composed([node]))["services"]["node-0-x"]["command"][-1]
    assert "cd '/x/läufe 😀' && docker" in compose.after(Path("/x/läufe 😀/compose.own.yaml"))
    config = resolve({"experiment": "handwritten"})
    weights = {"model": config.model.model_copy(update={"weights": "/home/w.pth"})}
    for change, named in ((weights, "model.weights='/home/w.pth'"), ({"plugins": ("mine.py",)}, "plugins")):
        with refused(ConfigError, named):
            compose.check(config.model_copy(update=change))
    compose.check(config)
