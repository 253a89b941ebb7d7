"""Several pipelines in one release: each as a release of its own would have it, and with one applier for all where the
values say so.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart import schema
from sluice.settings import load
from tests.ops import helm, manifests
from tests.ops.helm import Manifest, Refused
from tests.support import commands

EACH, SHARED = "pipelines", "pipelines-shared"
NAMES = ("archive", "crm", "shop_eu")


def _spec(rendered: list[Manifest], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifests.named(rendered, "StatefulSet", name)["spec"]
    return spec


def _config(rendered: list[Manifest], name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(manifests.named(rendered, "ConfigMap", name)["data"]["sluice.yaml"])
    return found


def test_a_pipeline_of_several_has_the_pods_that_a_release_of_its_own_would_have() -> None:
    values = helm.feature(EACH)
    several = helm.render(values)
    own = values.pop("pipelines")["crm"]
    alone = helm.render(
        {
            **values,
            **own,
            "config": {**values["config"], **own["config"], "pipeline": "crm"}
            | {"source": {**values["config"]["source"], **own["config"]["source"]}},
            "networkPolicy": {**values["networkPolicy"], **own["networkPolicy"]},
            "fullnameOverride": "shop-sluice-crm",
        }
    )
    for component in ("ingest", "applier"):
        ours, theirs = manifests.pod(several, component, pipeline="crm"), manifests.pod(alone, component)
        assert json.loads(json.dumps(ours.spec).replace("shop-sluice-crm-config", "shop-sluice-crm")) == theirs.spec
    assert _config(several, "shop-sluice-crm-config") == _config(alone, "shop-sluice-crm")
    egress = [
        manifests.named(each, "NetworkPolicy", "shop-sluice-crm-ingest")["spec"]["egress"] for each in (several, alone)
    ]
    assert egress[0] == egress[1]


def test_what_a_pipeline_gives_overrides_the_release_and_the_rest_is_the_release_s() -> None:
    rendered = helm.render(helm.feature(EACH))
    crm = _config(rendered, "shop-sluice-crm-config")
    assert crm["pipeline"] == "crm"
    assert crm["source"] == {"tables": ["sales.*"]}
    assert crm["spool"]["options"] == {"aws_region": "eu-central-1"}
    assert _config(rendered, "shop-sluice-shop-eu-config")["source"] == {"tables": ["public.*"]}
    secrets, memory = {}, {}
    for pod in manifests.pods(rendered):
        if pod.component == "ingest":
            volumes = [volume for volume in pod.spec["volumes"] if volume["name"] in ("source", "spool-keys")]
            secrets[pod.pipeline] = [volume["secret"]["secretName"] for volume in volumes]
            memory[pod.pipeline] = pod.container("ingest")["resources"]["limits"]["memory"]
    assert secrets == {"archive": ["store"], "crm": ["crm-source", "store"], "shop_eu": ["store-of-shop"]}
    assert memory == {"archive": "2Gi", "crm": "3Gi", "shop_eu": "2Gi"}


def test_false_in_a_pipeline_overrides_true_in_the_release() -> None:
    values = helm.changed(EACH, "paused", True)
    values["pipelines"]["crm"]["paused"] = False
    rendered = helm.render(values)
    assert _spec(rendered, "shop-sluice-crm-ingest")["replicas"] == 1
    assert _spec(rendered, "shop-sluice-shop-eu-ingest")["replicas"] == 0


def test_a_change_of_one_pipeline_replaces_no_pod_of_another() -> None:
    before, after = (
        helm.render(values)
        for values in (helm.feature(EACH), helm.changed(EACH, "pipelines/crm/config/spool", {"max_delay": "5s"}))
    )
    changed = {
        item["metadata"]["name"]
        for item in manifests.of_kind(after, "StatefulSet")
        if item != manifests.named(before, "StatefulSet", item["metadata"]["name"])
    }
    assert changed == {"shop-sluice-crm-ingest", "shop-sluice-crm-applier"}


def test_one_applier_serves_all_pipelines_that_are_not_paused() -> None:
    rendered = helm.render(helm.feature(SHARED))
    (applier,) = (pod for pod in manifests.pods(rendered) if pod.component == "applier")
    assert applier.spec["containers"][0]["args"] == ["apply", "--fleet", "/etc/sluice/pipelines", "--workers", "3"]
    seen = manifests.configurations(rendered, applier)
    assert {path: yaml.safe_load(text)["pipeline"] for path, text in seen.items()} == {
        "/etc/sluice/pipelines/crm.yaml": "crm",
        "/etc/sluice/pipelines/shop_eu.yaml": "shop_eu",
    }
    # JVM: 4 GiB of heap, a sixteenth of it, 512 MiB. Python: 384 MiB, 3 windows of 1408 MiB, 256 MiB of keys.
    assert applier.spec["containers"][0]["resources"]["limits"]["memory"] == "10Gi"
    assert _spec(rendered, "shop-sluice-applier")["replicas"] == 1
    for name in ("crm", "shop_eu"):
        assert not [pod for pod in manifests.pods(rendered) if pod.component == "applier" and pod.pipeline == name]


def test_a_changed_configuration_replaces_the_shared_applier() -> None:
    before, after, paused = (
        _spec(helm.render(values), "shop-sluice-applier")["template"]
        for values in (
            helm.feature(SHARED),
            helm.changed(SHARED, "pipelines/crm/config/spool", {"max_delay": "5s"}),
            helm.changed(SHARED, "pipelines/crm/paused", True),
        )
    )
    assert before != after
    assert before != paused


def test_the_shared_applier_runs_only_while_there_is_something_to_apply() -> None:
    values = helm.feature(SHARED)
    for own in values["pipelines"].values():
        own["paused"] = True
    assert _spec(helm.render(values), "shop-sluice-applier")["replicas"] == 0


@pytest.mark.parametrize("feature", [EACH, SHARED, "pipelines-kubernetes"])
def test_the_service_accepts_what_each_pod_of_several_pipelines_reads(feature: str, tmp_path: Path) -> None:
    rendered = helm.render(helm.feature(feature))
    expected = set(helm.feature(feature)["pipelines"])
    seen: dict[str, set[str]] = {"ingest": set(), "applier": set(), "test": set()}
    for number, pod in enumerate(manifests.pods(rendered)):
        container = pod.spec["containers"][0]
        if pod.component not in seen or container["name"] == "readyz":
            continue
        secret = tmp_path / "secret"
        secret.write_text("postgresql://sluice@db.example.com/shop\n")
        environ = {
            name: str(secret) if name.endswith("_FILE") else value
            for name, value in manifests.environment(container).items()
        }
        for path, text in manifests.configurations(rendered, pod).items():
            file = tmp_path / str(number) / Path(path).name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            loaded = load(str(file), environ=environ).settings
            assert loaded.pipeline == (pod.pipeline or Path(path).stem)
            seen[pod.component].add(loaded.pipeline)
    paused = {name for name, own in helm.feature(feature)["pipelines"].items() if own.get("paused")}
    assert seen["ingest"] == seen["test"] == expected
    assert seen["applier"] == (expected - paused if feature != EACH else expected)


@pytest.mark.parametrize("feature", [EACH, SHARED])
def test_the_rules_watch_every_pipeline_and_know_which_is_paused(feature: str, promtool: Path, tmp_path: Path) -> None:
    (rule,) = manifests.of_kind(helm.render(helm.feature(feature)), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    said = [
        (found["record"], found["labels"]["pipeline"], found["labels"].get("part"))
        for found in group["rules"]
        if found.get("record") in ("pipeline:sluice_declared", "pipeline:sluice_paused")
    ]
    assert said == [
        ("pipeline:sluice_declared", "archive", None),
        ("pipeline:sluice_paused", "archive", "ingest"),
        ("pipeline:sluice_paused", "archive", "applier"),
        ("pipeline:sluice_declared", "crm", None),
        ("pipeline:sluice_declared", "shop_eu", None),
    ]
    expressions = [str(found["expr"]) for found in group["rules"] if "alert" in found]
    assert all('pipeline=~"archive|crm|shop_eu"' in one for one in expressions)
    written = tmp_path / "rules.yml"
    written.write_text(json.dumps({"groups": [group]}))
    done = commands.ended(promtool, "check", "rules", written)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_monitor_scrapes_the_pods_of_all_pipelines() -> None:
    rendered = helm.render(helm.feature(SHARED))
    (monitor,) = manifests.of_kind(rendered, "ServiceMonitor")
    labels = monitor["spec"]["selector"]["matchLabels"]
    services = manifests.of_kind(rendered, "Service")
    assert {item["metadata"]["name"] for item in services} == {
        "shop-sluice-applier",
        *(f"shop-sluice-{name}-ingest" for name in ("archive", "crm", "shop-eu")),
    }
    assert all(labels.items() <= item["metadata"]["labels"].items() for item in services)


def test_notes_name_every_pipeline_and_what_to_run_for_it() -> None:
    said = helm.notes(helm.feature(SHARED))
    assert "pipelines archive, crm, shop_eu" in said
    assert "pod/shop-sluice-crm-ingest-0" in said
    assert "pod/shop-sluice-archive-ingest-0" not in said
    assert "pipelines.archive.paused=false" in said
    assert "One applier serves all pipelines: shop-sluice-applier-0" in said


@pytest.mark.parametrize("name", ["2026", "on", "no", "true", "null", "1e3"])
def test_a_name_that_yaml_takes_for_something_else_is_a_label_all_the_same(name: str) -> None:
    values = helm.feature(EACH)
    values["pipelines"] = {name: values["pipelines"]["crm"]}
    sets = manifests.of_kind(helm.render(values | {"nameOverride": name if name.isalpha() else ""}), "StatefulSet")
    labels = [found for item in sets for found in (item["metadata"]["labels"], item["spec"]["selector"]["matchLabels"])]
    assert {found[manifests.PIPELINE] for found in labels} == {name}
    assert all(isinstance(value, str) for found in labels for value in found.values())


@pytest.mark.parametrize(
    ("feature", "path", "value", "said"),
    [
        (EACH, "pipelines/Shop", {}, "Shop"),
        (EACH, "pipelines/crm/config/source", {"dsn": "postgresql://sluice:canary@db.example.com/crm"}, "dsn"),
        (EACH, "pipelines/crm/metrics", {}, "metrics"),
        (EACH, "pipelines/crm/config/pipeline", "other", "pipelines.crm.config.pipeline"),
        (EACH, "config/pipeline", "shop", "config.pipeline"),
        (EACH, "existingConfigMap", {"name": "mine"}, "existingConfigMap"),
        (EACH, "config/lake", {}, "config.lake.uri is missing"),
        (EACH, "pipelines/crm/source", {}, "pipelines.crm.source.existingSecret.name"),
        (EACH, "ingest", {"serviceAccount": {"name": "one"}}, "ingest.serviceAccount.name"),
        (EACH, "fullnameOverride", "a" * 39, "pipelines.archive"),
        (SHARED, "pipelines/crm/applier", {"tmp": {"sizeLimit": "2Gi"}}, "pipelines.crm.applier"),
        (SHARED, "pipelines/crm/objectStore", {"existingSecret": {"name": "x"}}, "pipelines.crm.objectStore"),
        (SHARED, "pipelines/crm/config/apply", {"conf": {}}, "pipelines.crm.config.apply.conf"),
        (SHARED, "applier/mode", "sparkApplication", "applier.shared"),
        ("default", "applier", {"shared": True}, "applier.shared needs"),
    ],
)
def test_what_several_pipelines_cannot_have_is_refused_by_name(feature: str, path: str, value: Any, said: str) -> None:
    with pytest.raises(Refused) as refused:
        helm.texts(helm.changed(feature, path, value))
    assert said in str(refused.value)


def test_a_shared_applier_has_time_for_the_longest_stop_of_its_pipelines() -> None:
    values = helm.changed(SHARED, "ingest/terminationGracePeriodSeconds", 150)
    values["pipelines"]["crm"]["config"]["stop_timeout"] = "2m"
    with pytest.raises(Refused, match=r"applier\.terminationGracePeriodSeconds is 30, and config\.stop_timeout is 2m"):
        helm.texts(values)
    values["applier"]["terminationGracePeriodSeconds"] = 150
    assert _spec(helm.render(values), "shop-sluice-applier")["template"]["spec"]["terminationGracePeriodSeconds"] == 150


def test_every_key_that_a_pipeline_may_override_is_a_key_of_the_release() -> None:
    document = json.loads((helm.CHART / "values.schema.json").read_text())["properties"]
    own = document["pipelines"]["additionalProperties"]["properties"]
    assert tuple(own) == schema.OF_A_PIPELINE
    assert {key: each["$ref"] for key, each in own.items()} == {key: f"#/properties/{key}" for key in own}
    assert own.keys() <= document.keys()
