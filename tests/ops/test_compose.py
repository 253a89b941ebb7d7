"""The compose file: well formed, complete by itself, and with the same configuration and dashboards
as everything else.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from sluice.settings import load
from tests.ops import helm

DEPLOY = Path("deploy")
COMPOSE = DEPLOY / "compose.yaml"
STACK = Path("tools") / "stack" / "sluice.yaml"
OURS = ("ingest", "applier")
_VARIABLE = re.compile(r"\$\$|\$\{([A-Z0-9_]+):-([^}]*)\}")


def _interpolated(text: str) -> str:
    """As an engine fills in variables of which none is set."""
    return _VARIABLE.sub(lambda match: "$" if match[0] == "$$" else match[2], text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_interpolated(COMPOSE.read_text()))
    return found


def test_it_is_a_compose_file_by_the_specification() -> None:
    # Engines resolve YAML's merge keys before they look at anything; the library leaves that to its
    # caller.
    text = yaml.safe_dump(yaml.safe_load(_interpolated(COMPOSE.read_text())))
    assert "ingest" in PyCompose.from_yaml(text).service_names()


def test_every_variable_has_a_default() -> None:
    assert "$" not in _VARIABLE.sub("", COMPOSE.read_text())


def test_every_service_that_stays_has_a_health_check_and_waits_for_healthy_ones(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if service["restart"] == "unless-stopped":
            assert "healthcheck" in service, name
        for needed, how in service.get("depends_on", {}).items():
            stays = compose["services"][needed]["restart"] == "unless-stopped"
            assert how["condition"] == ("service_healthy" if stays else "service_completed_successfully")
            # A profile brings what its services wait for.
            assert set(service["profiles"]) <= set(compose["services"][needed]["profiles"]), f"{name} needs {needed}"


def test_images_have_exact_tags_and_one_for_each_program(compose: dict[str, Any]) -> None:
    tags: dict[str, set[str]] = {}
    for service in compose["services"].values():
        image, _, tag = service["image"].rpartition(":")
        assert re.search(r"\d+\.\d+", tag), service["image"]
        tags.setdefault(image, set()).add(tag)
    assert all(len(found) == 1 for found in tags.values())


def test_nothing_listens_beyond_this_machine(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_volumes_and_files_that_are_mounted_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], (
                f"{name}: {source}"
            )
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"]


def test_our_containers_are_confined_as_in_the_chart(compose: dict[str, Any]) -> None:
    # The applier never meets PostgreSQL: it gets no password of it.
    assert compose["services"]["applier"]["environment"]["SLUICE_SOURCE__DSN"] == "postgresql://"
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["stop_grace_period"] == "30s"


@pytest.mark.parametrize("name", OURS)
def test_the_service_reads_the_configuration_that_is_mounted(name: str, compose: dict[str, Any]) -> None:
    environ = compose["services"][name]["environment"]
    settings = load(str(STACK), environ=environ).settings
    assert f"127.0.0.1:{settings.telemetry.listen.rpartition(':')[2]}" in str(
        compose["services"]["ingest"]["healthcheck"]["test"]
    )
    # The bucket that is made is the one that is written.
    assert settings.spool.uri.split("/")[2] in compose["services"]["bucket"]["command"][0]
    assert settings.source.publication in compose["configs"]["shop"]["content"]


def test_the_chart_s_feature_has_the_same_configuration() -> None:
    assert helm.feature("stack")["config"] == yaml.safe_load(STACK.read_text())


def test_files_that_are_written_out_are_of_their_format(compose: dict[str, Any]) -> None:
    configs = {name: config["content"] for name, config in compose["configs"].items()}
    keys = json.loads(configs["keys"])["identities"][0]["credentials"][0]
    options = compose["services"]["ingest"]["environment"]
    assert keys == {
        "accessKey": options["SLUICE_SPOOL__OPTIONS__AWS_ACCESS_KEY_ID"],
        "secretKey": options["SLUICE_SPOOL__OPTIONS__AWS_SECRET_ACCESS_KEY"],
    }
    scraped = yaml.safe_load(configs["prometheus"])
    assert scraped["rule_files"] == ["/etc/prometheus/rules.yml"]
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == ["ingest:9187", "applier:9188"]
    provider = yaml.safe_load(configs["dashboards"])["providers"][0]
    assert any(
        volume.endswith(f":{provider['options']['path']}:ro") for volume in compose["services"]["grafana"]["volumes"]
    )
    assert yaml.safe_load(configs["datasource"])["datasources"][0]["url"] == "http://prometheus:9090"
