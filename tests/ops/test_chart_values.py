"""What the chart takes: everything that the service takes, nothing unknown, no secret."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.settings import load
from tests.ops import helm, manifests
from tests.ops.helm import CHART, Refused

OF_ONE_PIPELINE = [
    pytest.param(path, id=path.stem.removesuffix("-values"))
    for path in helm.ci_files()
    if not path.name.startswith("pipelines")
]
CANARY = "canary-f00d"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("ingest/replicas", 2, "replicas"),
        ("ingest/image/tagg", "1", "tagg"),
        ("paused", "yes", "boolean"),
        ("ingest/resources", "2Gi", "object"),
        ("applier/mode", "cronjob", "sparkApplication"),
        ("metrics/ingestPort", 0, "minimum"),
        ("ingest/image/digest", "sha256:abc", "pattern"),
        ("networkPolicy/source/ports", ["5432"], "integer"),
        ("config/spool/max_dely", "2s", "max_dely"),
        ("nameOverride", "Sluice", "pattern"),
        ("nameOverride", "my_cdc", "pattern"),
        ("fullnameOverride", "9lives", "pattern"),
        ("config/source/streaming", "sometimes", "parallel"),
        ("config/tables", {"public.orders": {"mod": "changelog"}}, "mod"),
    ],
)
def test_what_is_not_known_or_not_of_its_type_is_refused_by_name(path: str, value: Any, said: str) -> None:
    with pytest.raises(Refused) as refused:
        helm.texts(helm.changed("default", path, value))
    assert said in str(refused.value)
    assert path.split("/")[-2 if path.endswith(said) else -1] in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("source/password", CANARY),
        ("source/existingSecret/value", CANARY),
        ("config/source/dsn", f"postgresql://sluice:{CANARY}@db.example.com/shop"),
        ("config/source/dsn", f"postgresql://sluice@db.example.com/shop?password={CANARY}"),
        ("config/source/dsn", f"host=db.example.com user=sluice password={CANARY}"),
        ("config/source/dsn", f"host=db.example.com user=sluice password = '{CANARY}'"),
        ("config/spool/options", {"aws_secret_access_key": CANARY}),
        ("config/spool/options", {"AWS_ACCESS_KEY_ID": CANARY}),
        ("config/spool/options", {"aws_session_token": CANARY}),
        ("config/lake/options", {"azure_storage_account_key": CANARY}),
        ("config/lake/options", {"google_service_account_key": CANARY}),
        ("config/apply/conf", {"spark.hadoop.fs.s3a.secret.key": CANARY}),
        ("config/apply/conf", {"spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": CANARY}),
        ("config/apply/conf", {"spark.hadoop.fs.azure.sas.fixed.token.x.dfs.core.windows.net": CANARY}),
        ("config/spool/options", {"aws_sse_customer_key_base64": CANARY}),
        ("config/spool/options", {"token": CANARY}),
        ("config/lake/options", {"azure_storage_master_key": CANARY}),
        ("config/lake/options", {"azure_encryption_key": CANARY}),
        ("config/catalog", {"token": CANARY}),
        ("config/telemetry", {"traces_headers": {"authorization": f"Bearer {CANARY}"}}),
        ("config/telemetry", {"lineage_headers": {"x-team": CANARY}}),
        ("applier/sparkConf", {"spark.hadoop.fs.s3a.secret.key": CANARY}),
        ("applier/sparkConf", {"spark.hadoop.fs.s3a.secret.key": "${SECRET}"}),
    ],
)
def test_a_secret_in_values_is_refused(path: str, value: Any) -> None:
    with pytest.raises(Refused):
        helm.texts(helm.changed("default", path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config/source/dsn", "postgresql://sluice@db.example.com:5432/shop?sslmode=verify-full"),
        ("config/source/dsn", "postgresql://sluice:${PASSWORD}@[2001:db8::1]:5432/shop"),
        ("config/source/dsn", "host=db.example.com user=sluice password=${PASSWORD}"),
        (
            "config/spool/options",
            {
                "aws_secret_access_key": "${SECRET}",
                "aws_region": "eu-central-1",
                "aws_web_identity_token_file": "/var/run/token",
            },
        ),
        ("config/lake/options", {"aws_endpoint": "https://objects.example.com"}),
        ("config/lake/options", {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "arn:aws:kms:x"}),
        ("config/catalog", {"kind": "unity", "uri": "https://x", "token": "${CATALOG_TOKEN}"}),
        ("config/telemetry", {"traces_headers": {"authorization": "Bearer ${TOKEN}"}}),
        ("applier/sparkConf", {"spark.sql.shuffle.partitions": "8"}),
        ("config/apply/conf", {"spark.hadoop.fs.s3a.secret.key": "${SECRET}", "spark.sql.shuffle.partitions": "8"}),
    ],
)
def test_a_variable_in_the_place_of_a_secret_is_taken(path: str, value: Any) -> None:
    assert helm.render(helm.changed("default", path, value))


@pytest.mark.parametrize(
    ("feature", "path", "value", "said"),
    [
        ("default", "config", {"spool": {"uri": "s3://a"}, "lake": {"uri": "s3://b"}}, "config.pipeline is missing"),
        ("default", "config/spool", {}, "config.spool.uri is missing"),
        ("default", "config/lake", {}, "config.lake.uri is missing"),
        ("default", "source", {}, "source.existingSecret.name"),
        ("default", "extraManifests", [7], "extraManifests"),
        ("pod-monitor", "metrics/serviceMonitor", {"enabled": True}, "scrape each pod twice"),
        ("tls", "metrics/tls/monitorSecret", {"name": ""}, "metrics.tls.monitorSecret"),
        ("existing-configmap", "config", {"pipeline": "shop"}, "config and existingConfigMap"),
        ("default", "config/stop_timeout", "1m", "ingest.terminationGracePeriodSeconds is 30"),
        ("default", "config/stop_timeout", 30, "ingest.terminationGracePeriodSeconds is 30"),
        ("kubernetes", "applier/terminationGracePeriodSeconds", 20, "applier.terminationGracePeriodSeconds is 20"),
        ("spark-application", "applier/terminationGracePeriodSeconds", 9, "applier.terminationGracePeriodSeconds is 9"),
        (
            "spark-application",
            "applier/spill",
            {"persistentVolumeClaim": {"enabled": True}},
            "applier.spill.persistent",
        ),
    ],
)
def test_what_is_missing_or_twice_is_named_with_what_to_do(feature: str, path: str, value: Any, said: str) -> None:
    with pytest.raises(Refused, match=re.escape(said)):
        helm.texts(helm.changed(feature, path, value))


@pytest.mark.parametrize("path", OF_ONE_PIPELINE)
def test_the_service_reads_what_the_chart_renders(path: Path, tmp_path: Path) -> None:
    """File and environment of both pods, through the service's own loader; Secrets and existing
    ConfigMaps have stand-ins.
    """
    rendered = helm.render(helm.values_of(path))
    own = [manifest for manifest in manifests.of_kind(rendered, "ConfigMap") if "sluice.yaml" in manifest["data"]]
    text = (
        own[0]["data"]["sluice.yaml"]
        if own
        else "{pipeline: shop, spool: {uri: 's3://spool'}, lake: {uri: 's3://lake'}}"
    )
    file = tmp_path / "sluice.yaml"
    file.write_text(text)
    secret = tmp_path / "dsn"
    secret.write_text("postgresql://sluice@db.example.com/shop\n")
    for pod in manifests.pods(rendered):
        if pod.component in ("ingest", "applier", "test"):
            container = pod.spec["containers"][0]
            environ = {
                name: str(secret) if name.endswith("_FILE") else value
                for name, value in manifests.environment(container).items()
            }
            if container["name"] != "readyz":
                loaded = load(str(file), environ=environ)
                assert loaded.settings.pipeline == "shop"


def test_the_configuration_arrives_as_it_was_given() -> None:
    given = helm.feature("config")["config"]
    rendered = manifests.named(helm.render(helm.feature("config")), "ConfigMap", "shop-sluice")
    assert yaml.safe_load(rendered["data"]["sluice.yaml"]) == given


def test_an_unknown_key_is_refused_at_every_depth_of_the_chart_s_own_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    opened = []

    def look(node: dict[str, Any], name: str) -> None:
        if "properties" in node and node.get("additionalProperties", True) is not False:
            opened.append(name)
        for key, below in node.get("properties", {}).items():
            look(below, f"{name}.{key}")

    look(schema, "values")
    for name, definition in schema["$defs"].items():
        look(definition, name)
    assert opened == []
