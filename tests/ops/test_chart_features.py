"""What each feature of the chart does, seen in the manifests that it makes."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.settings.memory import applier_memory
from sluice.settings.model import ApplySettings
from tests.ops import helm
from tests.ops.helm import Values
from tests.ops.manifests import environment, named, of_kind, pod

INGEST = "shop-sluice-ingest"
APPLIER = "shop-sluice-applier"


def _annotations(values: Values, component: str) -> dict[str, str]:
    return pod(helm.render(values), component).annotations


def _mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def _rules(policy: dict[str, Any], direction: str) -> list[set[Any]]:
    return [{port["port"] for port in rule.get("ports", [])} for rule in policy["spec"][direction]]


def test_the_default_is_ingest_and_applier_and_nothing_that_was_not_asked_for() -> None:
    kinds = Counter(manifest["kind"] for manifest in helm.render(helm.feature("default")))
    assert kinds == {"ConfigMap": 1, "Pod": 2, "Service": 2, "ServiceAccount": 2, "StatefulSet": 2}
    asked = Counter(manifest["kind"] for manifest in helm.render(helm.feature("disruption-budget")))
    assert asked - kinds == {"PodDisruptionBudget": 2}


def _replicas(feature: str) -> dict[str, int]:
    sets = of_kind(helm.render(helm.feature(feature)), "StatefulSet")
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in sets}


def test_paused_is_no_pod_and_keeps_everything_else() -> None:
    rendered = helm.render(helm.feature("paused"))
    assert _replicas("paused") == {INGEST: 0, APPLIER: 0}
    assert _replicas("applier-paused") == {INGEST: 1, APPLIER: 0}
    assert "PAUSED" in helm.notes(helm.feature("paused"))
    # A test that waits for a pod that does not run would only fail.
    assert "readyz" not in {item["spec"]["containers"][0]["name"] for item in of_kind(rendered, "Pod")}


def test_a_paused_spark_application_is_suspended() -> None:
    for paused in (False, True):
        values = helm.feature("spark-application") | {"paused": paused}
        (application,) = of_kind(helm.render(values), "SparkApplication")
        assert application["spec"]["suspend"] is paused


@pytest.mark.parametrize("component", ["ingest", "applier"])
def test_a_change_of_the_configuration_rolls_the_pods_and_nothing_else_does(component: str) -> None:
    before, other = helm.feature("default"), helm.feature("default")
    other["config"]["spool"]["max_delay"] = "3s"
    elsewhere = helm.feature("default") | {"podDisruptionBudget": {"enabled": True}}
    assert _annotations(before, component)["checksum/config"] != _annotations(other, component)["checksum/config"]
    assert _annotations(before, component) == _annotations(elsewhere, component)


def test_a_change_of_spark_s_settings_rolls_the_driver() -> None:
    before, other = helm.feature("kubernetes"), helm.feature("kubernetes")
    other["applier"]["executors"]["instances"] = 7
    assert _annotations(before, "applier")["checksum/spark"] != _annotations(other, "applier")["checksum/spark"]
    assert _annotations(before, "ingest") == _annotations(other, "ingest")


def test_the_connection_string_comes_from_a_mounted_secret() -> None:
    container = pod(helm.render(helm.feature("default")), "ingest").container("ingest")
    assert environment(container)["SLUICE_SOURCE__DSN_FILE"] == f"{_mounts(container)['source']}/dsn"
    assert "SLUICE_SOURCE__DSN" not in environment(container)


def test_credentials_and_certificates_come_from_secrets_that_exist() -> None:
    rendered = helm.render(helm.feature("secrets"))
    ingest = environment(pod(rendered, "ingest").container("ingest"))
    assert ingest["SLUICE_SOURCE__DSN"] == "secret shop-source connection-string"
    # Files, which follow the Secret: an environment cannot change.
    for component in ("ingest", "applier"):
        assert _mounted(rendered, component, "SLUICE_SPOOL__OPTIONS__AWS_SECRET_ACCESS_KEY_FILE") == (
            "spool-keys",
            "aws_secret_access_key",
        )
        assert _mounted(rendered, component, "SLUICE_LAKE__OPTIONS__AWS_ACCESS_KEY_ID_FILE") == ("lake-keys", "access")
    assert {ingest[name] for name in ("PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY")} == {
        f"/etc/sluice/tls/{name}" for name in ("ca.crt", "tls.crt", "tls.key")
    }
    applier = environment(pod(rendered, "applier").container("applier"))
    assert applier["SLUICE_SOURCE__DSN"] == "postgresql://"
    # libpq refuses a private key that others may read.
    tls = next(volume for volume in pod(rendered, "ingest").spec["volumes"] if volume["name"] == "tls")
    assert tls["secret"]["defaultMode"] == 0o440


def _mounted(rendered: list[dict[str, Any]], component: str, variable: str) -> tuple[str, str]:
    """The Secret and its key behind the file that a variable names."""
    found = pod(rendered, component)
    container = found.container(component)
    folder, _, file = environment(container)[variable].rpartition("/")
    volume = next(mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder)
    secret = next(each["secret"] for each in found.spec["volumes"] if each["name"] == volume)
    key = next(item["key"] for item in secret["items"] if item["path"] == file)
    return secret["secretName"], key


def test_an_existing_configmap_is_mounted_under_the_name_that_the_service_reads() -> None:
    rendered = helm.render(helm.feature("existing-configmap"))
    assert not of_kind(rendered, "ConfigMap")
    volume = next(volume for volume in pod(rendered, "ingest").spec["volumes"] if volume["name"] == "config")
    assert volume["configMap"] == {"name": "shop-sluice", "items": [{"key": "shop.yaml", "path": "sluice.yaml"}]}


def test_endpoints_listen_where_the_probes_look() -> None:
    rendered = helm.render(helm.feature("default"))
    for component, variable, port in (
        ("ingest", "SLUICE_TELEMETRY__LISTEN", 9187),
        ("applier", "SLUICE_TELEMETRY__APPLY_LISTEN", 9188),
    ):
        container = pod(rendered, component).container(component)
        assert environment(container)[variable] == f"0.0.0.0:{port}"
        assert {"name": "metrics", "containerPort": port} in container["ports"]
        assert named(rendered, "Service", f"shop-sluice-{component}")["spec"]["ports"][0] == {
            "name": "metrics",
            "port": port,
            "targetPort": "metrics",
        }


def test_ipv6_addresses_reach_endpoints_and_driver() -> None:
    rendered = helm.render(helm.feature("ipv6"))
    assert environment(pod(rendered, "ingest").container("ingest"))["SLUICE_TELEMETRY__LISTEN"] == "[::]:9187"
    assert (
        "spark.driver.bindAddress ::\n"
        in named(rendered, "ConfigMap", "shop-sluice-spark")["data"]["spark-defaults.conf"]
    )


def test_a_driver_with_executors_knows_how_to_make_them() -> None:
    rendered = helm.render(helm.feature("kubernetes"))
    data = named(rendered, "ConfigMap", "shop-sluice-spark")["data"]
    conf = dict(line.split(" ", 1) for line in data["spark-defaults.conf"].splitlines())
    driver = pod(rendered, "applier").container("applier")
    assert environment(driver)["SLUICE_APPLY__SPARK_MASTER"] == "k8s://https://kubernetes.default.svc"
    assert environment(driver)["SPARK_CONF_DIR"] == "/etc/sluice/spark/conf"
    assert conf["spark.kubernetes.container.image"] == driver["image"]
    assert conf["spark.kubernetes.driver.pod.name"] == f"{APPLIER}-0"
    assert conf["spark.driver.host"] == f"{APPLIER}.{helm.NAMESPACE}.svc"
    assert conf["spark.kubernetes.namespace"] == helm.NAMESPACE
    assert conf["spark.kubernetes.container.image.pullSecrets"] == "registry"
    assert {port["name"]: port["containerPort"] for port in driver["ports"]} == {
        "metrics": 9188,
        "driver": int(conf["spark.driver.port"]),
        "blocks": int(conf["spark.driver.blockManager.port"]),
    }
    assert {port["name"] for port in named(rendered, "Service", APPLIER)["spec"]["ports"]} == {
        "metrics",
        "driver",
        "blocks",
    }
    # What the user gives comes over what the chart says.
    assert conf["spark.executor.cores"] == "2"
    assert (conf["spark.executor.instances"], conf["spark.executor.memory"]) == ("3", "4g")
    executor = yaml.safe_load(data["executor.yaml"])
    assert executor["spec"]["nodeSelector"] == {"pool": "batch"}
    assert executor["spec"]["serviceAccountName"] == conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert executor["spec"]["containers"][0]["name"] == conf["spark.kubernetes.executor.podTemplateContainerName"]
    files = {
        item["key"]: item["path"]
        for volume in pod(rendered, "applier").spec["volumes"]
        if volume["name"] == "spark"
        for item in volume["configMap"]["items"]
    }
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"/etc/sluice/spark/{files['executor.yaml']}"
    assert files["spark-defaults.conf"] == "conf/spark-defaults.conf"


def test_the_driver_s_role_is_bound_to_its_account() -> None:
    rendered = helm.render(helm.feature("kubernetes"))
    binding = named(rendered, "RoleBinding", APPLIER)
    assert binding["roleRef"]["name"] == named(rendered, "Role", APPLIER)["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [pod(rendered, "applier").spec["serviceAccountName"]]
    without = helm.feature("kubernetes")
    without["applier"]["rbac"] = {"create": False}
    assert not of_kind(helm.render(without), "Role")


def test_the_spark_operator_gets_the_image_s_program_and_jars() -> None:
    application = of_kind(helm.render(helm.feature("spark-application")), "SparkApplication")[0]["spec"]
    assert application["mainApplicationFile"] == "local:///opt/sluice/apply.py"
    assert application["arguments"] == ["apply"]
    assert application["sparkConf"]["spark.driver.extraClassPath"] == "/opt/sluice/jars/*"
    assert application["driver"]["template"]["spec"]["containers"][0]["name"] == "spark-kubernetes-driver"
    assert application["timeToLiveSeconds"] == 86400
    assert not {"Role", "RoleBinding"} - {
        manifest["kind"] for manifest in helm.render(helm.feature("spark-application"))
    }


def test_the_driver_of_the_spark_operator_has_the_hooks_of_the_applier() -> None:
    hooks = {"preStop": {"exec": {"command": ["true"]}}}
    rendered = helm.render(helm.changed("spark-application", "applier/lifecycle", hooks))
    assert pod(rendered, "applier").container("spark-kubernetes-driver")["lifecycle"] == hooks


def test_an_external_applier_leaves_nothing_behind() -> None:
    names = {manifest["metadata"]["name"] for manifest in helm.render(helm.feature("external"))}
    assert not {name for name in names if "applier" in name or "executor" in name}
    assert "sluice apply" in helm.notes(helm.feature("external"))


def test_the_network_policy_lets_out_what_was_named_and_no_more() -> None:
    rendered = helm.render(helm.feature("network-policy"))
    ingest, applier = named(rendered, "NetworkPolicy", INGEST), named(rendered, "NetworkPolicy", APPLIER)
    assert _rules(ingest, "egress") == [{53}, {6432}, {9000}, {4318}]
    assert _rules(applier, "egress") == [{53}, {9000}, {4318}], "the applier does not reach the source"
    assert ingest["spec"]["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.20.30.40/32"}}]
    assert ingest["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_driver_and_executors_reach_each_other_and_the_driver_the_api_server() -> None:
    rendered = helm.render(helm.feature("kubernetes"))
    driver, executor = (
        named(rendered, "NetworkPolicy", APPLIER),
        named(rendered, "NetworkPolicy", "shop-sluice-executor"),
    )
    assert {443, 6443} in _rules(driver, "egress")
    assert {443, 6443} not in _rules(executor, "egress")
    for policy in (driver, executor):
        for direction, key in (("ingress", "from"), ("egress", "to")):
            peers = [
                peer["podSelector"]["matchExpressions"][0]["values"]
                for rule in policy["spec"][direction]
                for peer in rule.get(key, [])
                if "matchExpressions" in peer.get("podSelector", {})
            ]
            assert peers == [["applier", "executor"]]


def test_workload_identities_need_no_key() -> None:
    rendered = helm.render(helm.feature("workload-identity"))
    account = named(rendered, "ServiceAccount", "shop-ingest")
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].endswith("shop-ingest")
    assert pod(rendered, "ingest").labels["azure.workload.identity/use"] == "true"
    assert pod(rendered, "applier").spec["serviceAccountName"] == "lake-writer"
    assert not {name for name in environment(pod(rendered, "ingest").container("ingest")) if "OPTIONS" in name}


def test_pod_identities_need_no_key_and_no_annotation_but_the_way_to_their_agent() -> None:
    rendered = helm.render(helm.feature("pod-identity"))
    for role in ("ingest", "applier"):
        account = named(rendered, "ServiceAccount", f"shop-{role}")
        assert not account["metadata"].get("annotations")
        assert pod(rendered, role).spec["serviceAccountName"] == f"shop-{role}"
        assert not {name for name in environment(pod(rendered, role).container(role)) if "OPTIONS" in name}
    policies = [one for one in rendered if one["kind"] == "NetworkPolicy"]
    ways = [
        rule for policy in policies for rule in policy["spec"].get("egress", []) if rule.get("ports") == [{"port": 80}]
    ]
    assert len(ways) >= 2
    assert all(rule["to"] == [{"ipBlock": {"cidr": "169.254.170.23/32"}}] for rule in ways)


def test_a_persistent_volume_takes_the_place_of_the_node_s_disk() -> None:
    rendered = helm.render(helm.feature("spill-volume"))
    claim = named(rendered, "StatefulSet", APPLIER)["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    assert "spill" not in {volume["name"] for volume in pod(rendered, "applier").spec["volumes"]}
    container = pod(rendered, "applier").container("applier")
    assert environment(container)["SPARK_LOCAL_DIRS"] == environment(container)["TMPDIR"] == _mounts(container)["spill"]


def test_images_are_named_by_registry_and_digest() -> None:
    rendered = helm.render(helm.feature("images"))
    assert (
        pod(rendered, "ingest")
        .container("ingest")["image"]
        .startswith("registry.example.com/data/sluice-ingest@sha256:0123")
    )
    assert pod(rendered, "applier").container("applier")["image"] == "registry.example.com/data/our-applier:0.1.0-ours"


def test_names_labels_and_annotations_of_one_s_own_are_everywhere() -> None:
    for manifest in helm.render(helm.feature("names")):
        assert manifest["metadata"]["name"].startswith("shop-cdc")
        assert manifest["metadata"]["labels"]["team"] == "data"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "cdc"
        if manifest["kind"] != "Pod":
            assert manifest["metadata"]["annotations"]["example.com/owner"] == "data"


def test_extras_are_where_they_belong() -> None:
    rendered = helm.render(helm.feature("extras"))
    ingest = pod(rendered, "ingest")
    assert ingest.container("ingest")["args"] == ["run", "-v"]
    assert environment(ingest.container("ingest"))["SLUICE_SPOOL__MAX_DELAY"] == "5s"
    assert _mounts(ingest.container("ingest"))["certificates"] == "/etc/ssl/ours"
    assert [container["name"] for container in ingest.spec["containers"]] == ["ingest", "proxy"]
    assert [container["name"] for container in ingest.spec["initContainers"]] == ["wait-for-source"]
    assert ingest.annotations["example.com/inject"] == "false"
    assert not of_kind(rendered, "Pod"), "tests.enabled: false"
    assert named(rendered, "ConfigMap", "shop-sluice-note")["data"] == {"owner": "data"}
    assert named(rendered, "ConfigMap", "shop-second")["data"] == {"pipeline": "shop"}


def test_the_test_pods_ask_for_readiness_and_run_the_preflight() -> None:
    rendered = helm.render(helm.feature("default"))
    tests = {item["metadata"]["name"]: item for item in of_kind(rendered, "Pod")}
    assert all(item["metadata"]["annotations"]["helm.sh/hook"] == "test" for item in tests.values())
    assert tests["shop-sluice-test-readyz"]["spec"]["containers"][0]["command"][-1] == f"http://{INGEST}:9187/readyz"
    check = tests["shop-sluice-test-check"]["spec"]["containers"][0]
    assert check["args"] == ["check"]
    own, ingest = environment(check), environment(pod(rendered, "ingest").container("ingest"))
    assert own.items() <= ingest.items(), "the check reads what ingest reads"


def test_the_notes_say_what_to_do_next_and_what_is_missing() -> None:
    notes = helm.notes(helm.feature("default"))
    assert "pipeline shop" in notes
    assert f"exec {INGEST}-0 -c ingest -- sluice status" in notes
    assert "metrics.podMonitor.enabled" in notes
    assert "metrics.podMonitor.enabled" not in helm.notes(helm.feature("pod-monitor"))


def test_a_probe_can_be_slowed_without_losing_the_rest() -> None:
    container = pod(helm.render(helm.feature("scheduling")), "ingest").container("ingest")
    assert container["livenessProbe"] == {
        "httpGet": {"path": "/livez", "port": "metrics"},
        "periodSeconds": 20,
        "timeoutSeconds": 5,
        "failureThreshold": 10,
    }


_APPLY_SETTINGS: list[dict[str, Any]] = [
    {},
    {"driver_memory": "4GiB"},
    {"workers": 8, "max_memory": "64MiB", "max_window": "32 mb"},
    {"key_cache": 0, "max_memory": 536870912},
    {"driver_memory": "1.5GiB", "workers": 3},
]


@pytest.mark.parametrize("apply", _APPLY_SETTINGS)
def test_the_applier_gets_the_memory_that_its_settings_need(apply: dict[str, Any]) -> None:
    values = helm.feature("default")
    values["config"]["apply"] = apply
    needed = applier_memory(ApplySettings.model_validate(apply))
    container = named(helm.render(values), "StatefulSet", APPLIER)["spec"]["template"]["spec"]["containers"][0]
    memory = f"{needed.container // 1024**3}Gi"
    assert (container["resources"]["requests"]["memory"], container["resources"]["limits"]["memory"]) == (
        memory,
        memory,
    )
    # The heap of this mode is a value of its own.
    values["applier"] = {"mode": "sparkApplication"}
    needed = applier_memory(ApplySettings.model_validate({**apply, "driver_memory": "2GiB"}))
    (driver,) = (each["spec"]["driver"] for each in of_kind(helm.render(values), "SparkApplication"))
    assert driver["memoryOverhead"] == f"{(needed.container - needed.heap) // 1024**2}m"


@pytest.mark.parametrize("given", ["requests", "limits"])
def test_memory_that_is_given_wins_and_a_request_is_never_above_its_limit(given: str) -> None:
    values = helm.feature("default")
    values["applier"] = {"resources": {given: {"memory": "4Gi"}}}
    (container,) = pod(helm.render(values), "applier").spec["containers"]
    assert {container["resources"][kind]["memory"] for kind in ("requests", "limits")} == {"4Gi"}


@pytest.mark.parametrize("component", ["ingest", "applier"])
def test_a_token_for_the_endpoints_is_mounted_and_the_monitor_presents_it(component: str) -> None:
    rendered = helm.render(helm.feature("token"))
    (container,) = pod(rendered, component).spec["containers"]
    assert environment(container)["SLUICE_TELEMETRY__TOKEN_PATH"] == "/etc/sluice/endpoint/token"
    assert _mounts(container)["endpoint"] == "/etc/sluice/endpoint"
    (monitor,) = of_kind(rendered, "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"] == {
        "name": "shop-endpoints",
        "key": "token",
    }


@pytest.mark.parametrize("component", ["ingest", "applier"])
def test_endpoints_with_a_certificate_are_probed_and_scraped_by_tls(component: str) -> None:
    rendered = helm.render(helm.feature("tls"))
    (container,) = pod(rendered, component).spec["containers"]
    folder = _mounts(container)["endpoint-tls"]
    (volume,) = (one for one in pod(rendered, component).spec["volumes"] if one["name"] == "endpoint-tls")
    files = {f"{folder}/{item['path']}" for item in volume["secret"]["items"]}
    named = {value for name, value in environment(container).items() if name.startswith("SLUICE_TELEMETRY__TLS_")}
    assert named == files
    assert len(files) == 3
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    (monitor,) = of_kind(rendered, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "serverName": "shop-sluice",
        "ca": {"secret": {"name": "prometheus-client", "key": "ca.crt"}},
        "cert": {"secret": {"name": "prometheus-client", "key": "tls.crt"}},
        "keySecret": {"name": "prometheus-client", "key": "tls.key"},
    }


def test_the_metrics_port_is_open_to_those_who_are_named_and_nobody_else() -> None:
    values = helm.feature("network-policy")
    policies = {each["metadata"]["name"]: each for each in of_kind(helm.render(values), "NetworkPolicy")}
    named_ones = [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    for name, port in ((INGEST, 9187), (APPLIER, 9188)):
        rules = [rule for rule in policies[name]["spec"]["ingress"] if {"port": port} in rule.get("ports", [])]
        assert [rule["from"] for rule in rules] == [named_ones]
        assert all(rule.get("from") for rule in policies[name]["spec"]["ingress"])
    values["networkPolicy"]["metricsFrom"] = []
    closed = named(helm.render(values), "NetworkPolicy", INGEST)
    assert [rule for rule in closed["spec"]["ingress"] if rule.get("ports")] == []


def test_every_example_of_values_on_the_page_for_kubernetes_renders() -> None:
    page = Path("docs/how-to/kubernetes.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]
    clouds = 0
    for example in examples:
        values = {
            **helm.feature("default"),
            **example,
            "networkPolicy": {"enabled": True, **example.get("networkPolicy", {})},
        }
        rendered = helm.render(values)
        annotations = [each["metadata"].get("annotations") for each in of_kind(rendered, "ServiceAccount")]
        clouds += all(annotations)
    assert len(examples) >= 5
    assert clouds == 3
