"""compose.yaml: containers that can change nothing, pinned images, and files that are where it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from penstock import cli, variables
from penstock.commands.environment import variable_names

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = ("penstock", "penstock-gpu")
each_service = pytest.mark.parametrize("name", SERVICES)
each_server = pytest.mark.parametrize("name", SERVERS)
VERSION = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M).group(1)  # type: ignore[union-attr]


@each_service
def test_a_container_changes_nothing_of_its_image_and_gains_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & service.keys()


@each_service
def test_images_are_pinned_and_ports_open_to_this_machine_alone(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
    assert service["ports"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@each_service
def test_health_is_looked_at_without_a_shell(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@each_server
def test_a_server_has_its_models_read_only_its_keys_as_a_secret_and_time_to_drain(name: str) -> None:
    service = SERVICES[name]
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == []
    assert service["secrets"] == ["keys"]
    assert service["environment"]["PENSTOCK_SERVE_KEYS"] == "/run/secrets/keys"
    assert int(service["stop_grace_period"].rstrip("s")) > float(service["environment"]["PENSTOCK_SERVE_DRAIN_S"])
    assert service["healthcheck"]["test"] == ["CMD", "penstock", "health"]
    assert service["image"] == f"{name}:{VERSION}"
    assert any(each.startswith("/tmp:") for each in service["tmpfs"])


@each_server
def test_every_variable_of_a_server_is_one_that_it_reads(name: str) -> None:
    command: Any = typer.main.get_command(cli.app)
    variables.check(SERVICES[name]["environment"], variable_names(command.commands["serve"]))


def test_the_one_for_gpus_is_asked_for_by_name_and_has_one() -> None:
    service = SERVICES["penstock-gpu"]
    assert service["profiles"] == ["gpu"]
    assert service["build"]["args"]["EXTRAS"] == "serve-gpu"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_docker_compose_takes_it() -> None:
    """By the schema that Docker's own program has, where it is installed: of version 2, or 1, which knows no `name`."""
    text = (ROOT / "compose.yaml").read_text()
    docker, older = shutil.which("docker"), shutil.which("docker-compose")
    if docker and not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        program = [docker, "compose"]
    elif older:
        program, text = [older], re.sub("^name: .*$", "", text, flags=re.M)
    else:
        pytest.skip("docker compose is not installed")
    command = [*program, "--project-name", "penstock", "--file", "-", "--profile", "gpu", "config", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr


def test_every_file_that_is_mounted_is_there_and_every_secret_and_volume_declared() -> None:
    for service in SERVICES.values():
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        for volume in service.get("volumes", ()):
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).split(":")[0]
            if source.startswith("./deploy") or source.startswith("./docs"):
                assert (ROOT / source).is_file(), volume
            elif not source.startswith("./"):
                assert source in COMPOSE["volumes"], volume
    assert all(secret["file"].startswith("./secrets/") for secret in COMPOSE["secrets"].values())
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_prometheus_asks_the_server_with_a_key_and_grafana_asks_prometheus() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{SERVICES['prometheus']['secrets'][0]}"
    assert job["static_configs"] == [{"targets": ["server:8000"]}]
    assert all(SERVICES[name]["networks"]["default"]["aliases"] == ["server"] for name in SERVERS)
    (source,) = yaml.safe_load((ROOT / "deploy/grafana/datasources.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((ROOT / "deploy/grafana/dashboards.yml").read_text())["providers"]
    mounted = {volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]}
    assert f"{provider['options']['path']}/penstock.json" in mounted
