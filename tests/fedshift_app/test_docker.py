"""The image and the compose demo, as files: what each service may do and see. Needs no Docker."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

from fedshift_datasets.sets.handwritten import DOMAINS

DOCKER = ROOT / "docker"
NODES = [f"node-{domain}" for domain in DOMAINS]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return content


def sources(service: dict[str, Any]) -> set[str]:
    """Return the volumes that a service sees."""
    return {volume.split(":")[0] for volume in service.get("volumes", [])}


def test_each_service_may_do_and_see_what_it_needs(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"prepare", "superlink", "register", "run", *NODES}
    for name, service in services.items():
        assert service["image"] == "${FEDSHIFT_IMAGE:-fedshift}"
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True), name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["mem_limit"] and service["cpus"], name
        assert "ports" not in service and "privileged" not in service, name
        stays = name == "superlink" or name in NODES
        assert (service["restart"] == "unless-stopped", "healthcheck" in service) == (stays, stays), name
        assert ("superlink" in sources(service)) == (name in ("prepare", "superlink")), name  # its key
        if name in ("superlink", "register", "run"):
            assert not sources(service) & set(DOMAINS)
        if name in (*NODES, "register", "run"):
            assert "public:/var/fedshift/public:ro" in service["volumes"]
    for index, domain in enumerate(DOMAINS):
        node = services[f"node-{domain}"]
        assert sources(node) == {domain, "public"}
        assert node["command"] == ["/app/docker/supernode.sh", domain, str(index)]


def test_nothing_is_insecure(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert compose["networks"]["federation"]["internal"] is True
    assert not [path for path in DOCKER.rglob("*.*") if "insecure" in path.read_text()]
    assert services["superlink"]["command"][:3] == ["fedshift", "superlink", "--credentials"]
    # The Control API answers the SuperLink's own loopback only.
    assert {services[name]["network_mode"] for name in ("register", "run")} == {"service:superlink"}
    assert set(yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())["services"]) == set(NODES)


def test_the_image_runs_as_nobody_in_particular() -> None:
    arguments, image = (DOCKER / "Dockerfile").read_text().split("\nFROM ${BASE_IMAGE}\n")
    assert re.search(r"^ARG BASE_IMAGE=\S+:[\w.-]*\d[\w.-]*$", arguments, re.MULTILINE), "the base must be pinned"
    assert re.search(r"^USER (?!root)\w+$", image, re.MULTILINE)
    (installs,) = (step for step in image.split("\nRUN ") if "pip install" in step)
    assert "pip uninstall --yes" in installs and "apt-get" not in image


def test_the_builder_gets_what_the_app_needs_and_no_more() -> None:
    """The bundle that Flower runs, and the package of the command that all services start."""
    bundle = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["fab-include"]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {pattern.strip("/").split("/")[0] for pattern in bundle} | {
        "fedshift",
        "pyproject.toml",
        "docker/*.sh",
    }


@pytest.mark.parametrize("script", sorted(DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_every_script_is_a_posix_shell_script(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK) == script.read_text().startswith("#!/bin/sh")


def test_pods_on_kubernetes_may_as_little_as_services_of_compose(compose: dict[str, Any]) -> None:
    health = compose["services"]["node-scan"]["healthcheck"]["test"][1:]
    for name in ("superlink", "supernode"):
        *_, workload = yaml.safe_load_all((DOCKER / "kubernetes" / f"{name}.yaml").read_text())
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 10001 and pod["automountServiceAccountToken"] is False
        for container in (*pod["initContainers"], *pod["containers"]):
            locked = container["securityContext"]
            assert (locked["capabilities"]["drop"], locked["readOnlyRootFilesystem"]) == (["ALL"], True)
            assert locked["allowPrivilegeEscalation"] is False and container["resources"]["limits"]["memory"]
        probe = pod["containers"][0]["livenessProbe"]
        assert probe.get("exec", {"command": health})["command"] == health
        mounted = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
        assert {*mounted.values()} == {None, {"superlink": "superlink", "supernode": "scan"}[name]}
