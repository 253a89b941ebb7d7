"""values.schema.json: what Helm refuses before anything is installed.

Owns two promises: no unknown key at any depth of what the chart itself reads, and no secret in
values. `config` is the service's own schema, with the difference that nothing is required (the
environment may give it) and that a secret must be a `${VARIABLE}`. Where values.yaml has an empty
map the type of its content is Kubernetes' own, which the API server checks. Draft 7, which every
Helm 3 reads.
"""

import copy
from collections.abc import Sequence
from typing import Any

from deploy.chart.values import Path, Value
from deploy.monitoring.alerts import ALERTS, THRESHOLDS
from sluice.settings.display import json_schema

Schema = dict[str, Any]

_STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_PORTS: Schema = {"type": "array", "items": _PORT, "minItems": 1}
_DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
_JVM_SIZE: Schema = {"type": "string", "pattern": "^[0-9]+[kmgt]b?$"}
_QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"}
_DIGEST: Schema = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_NAME: Schema = {"type": "string", "pattern": "^([a-z]([-a-z0-9]*[a-z0-9])?)?$"}
"""As the name of a Service may begin, and every other name."""

_LITERAL = r"([^$\s&]|\$[^{])"
"""The first character of a value that is written out, and no `${VARIABLE}`."""
_PASSWORD_WORDS = "(password|sslpassword|oauth_client_secret|scram_client_key|scram_server_key)"  # noqa: S105 - names, no secret
_DSN_WITH_PASSWORD = rf"://[^/@?:]*:{_LITERAL}[^@]*@|{_PASSWORD_WORDS}\s*=\s*{_LITERAL}"
_SECRET_OPTION = (
    r"(?i)(secret|password|passphrase|(^|_)token$"  # noqa: S105 - as above
    r"|(access|account|storage|sas|master|private|customer|encryption)_key)"
)
_SECRET_SPARK_KEY = r"(?i)(secret|password|passphrase|\.token(\.|$)|access[._]key|account[._]key|\.key$)"  # noqa: S105 - as above
_REFERENCE = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}"
_VARIABLE: Schema = {"type": "string", "pattern": f"^{_REFERENCE}$"}

_BY_NAME: dict[str, Schema] = {
    "nameOverride": _NAME,
    "fullnameOverride": _NAME,
    # Nothing replaces a variable there: it becomes a ConfigMap as it is.
    "applier.sparkConf": {**_STRINGS, "propertyNames": {"not": {"pattern": _SECRET_SPARK_KEY}}},
    "extraManifests": {"type": "array", "items": {"type": ["object", "string"]}},
    "applier.mode": {"enum": ["pod", "kubernetes", "sparkApplication", "external"]},
    "source.existingSecret.as": {"enum": ["file", "env"]},
    "networkPolicy.source.ports": _PORTS,
    "networkPolicy.objectStore.ports": _PORTS,
    "networkPolicy.apiServer.ports": _PORTS,
    "metrics.prometheusRule.additionalLabels": _STRINGS,
    "metrics.alertmanagerConfig.additionalLabels": _STRINGS,
    "metrics.prometheusRule.excludeRules": {"type": "array", "items": {"enum": [alert.name for alert in ALERTS]}},
    **{
        f"metrics.prometheusRule.thresholds.{threshold.name}": {"type": "number", "minimum": 0}
        for threshold in THRESHOLDS
    },
    "metrics.ingestPort": _PORT,
    "metrics.applierPort": _PORT,
    "metrics.listenHost": {"type": "string", "minLength": 1},
    "applier.kubernetes.master": {"type": "string", "pattern": "^k8s://"},
    "applier.kubernetes.driverPort": _PORT,
    "applier.kubernetes.blockManagerPort": _PORT,
    "applier.executors.instances": _COUNT,
    "applier.executors.cores": _COUNT,
    "applier.sparkApplication.driver.cores": _COUNT,
}
"""What the default alone does not tell, by whole name."""

_BY_LAST: dict[str, Schema] = {
    **dict.fromkeys(
        (
            "commonLabels",
            "commonAnnotations",
            "labels",
            "annotations",
            "podLabels",
            "podAnnotations",
            "nodeSelector",
            "keys",
        ),
        _STRINGS,
    ),
    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "sizeLimit": _QUANTITY,
    "spillSizeLimit": _QUANTITY,
    "memory": _JVM_SIZE,
    "memoryOverhead": {"type": "string", "pattern": "^([0-9]+[kmgt]b?)?$"},
    "interval": _DURATION,
    "scrapeTimeout": _DURATION,
    "digest": _DIGEST,
    "extraArgs": {"type": "array", "items": {"type": "string"}},
    "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
}
"""The same, by the last part of the name."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}

OF_A_PIPELINE = ("paused", "config", "source", "objectStore", "ingest", "applier", "networkPolicy")
"""What each of `pipelines` may have for itself."""

_PIPELINE_NAME = "^[a-z0-9]([a-z0-9_]{0,30}[a-z0-9])?$"
"""As the service takes it, and as a name in Kubernetes can hold it: _ becomes -."""


def document(values: Sequence[Value]) -> Schema:
    """The whole schema."""
    root = _closed()
    root["$schema"] = "http://json-schema.org/draft-07/schema#"
    root["title"] = "Values of the chart sluice"
    config, definitions = _config()
    for value in values:
        _place(root, value, config if value.path == ("config",) else _schema_of(value))
    root["properties"]["pipelines"] |= {
        "propertyNames": {"pattern": _PIPELINE_NAME},
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: {"$ref": f"#/properties/{key}"} for key in OF_A_PIPELINE},
        },
    }
    # Helm itself puts `global` there.
    root["properties"]["global"] = {"type": "object"}
    root["$defs"] = definitions
    return root


def _closed() -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _place(root: Schema, value: Value, schema: Schema) -> None:
    level = root
    for part in value.path[:-1]:
        level = level["properties"].setdefault(part, _closed())
    level["properties"][value.path[-1]] = {"description": value.description, **copy.deepcopy(schema)}


def _schema_of(value: Value) -> Schema:
    known = _BY_NAME.get(value.name) or _BY_LAST.get(value.path[-1])
    return known if known is not None else {"type": _TYPES[type(value.default)]}


def _config() -> tuple[Schema, Schema]:
    """The schema of `config`, and the definitions that it refers to."""
    settings = json_schema()
    definitions: Schema = settings.pop("$defs")
    del settings["$schema"], settings["title"]
    for part in (settings, *definitions.values()):
        part.pop("required", None)
    _amend(definitions, ("SourceSettings", "dsn"), {"not": {"pattern": _DSN_WITH_PASSWORD}})
    for path, pattern in (
        (("SpoolSettings", "options"), _SECRET_OPTION),
        (("LakeSettings", "options"), _SECRET_OPTION),
        (("ApplySettings", "conf"), _SECRET_SPARK_KEY),
    ):
        _amend(definitions, path, {"patternProperties": {pattern: _VARIABLE}})
    _amend(definitions, ("CatalogSettings", "token"), {"pattern": f"^({_REFERENCE})?$"})
    # Any header may hold a key: the name of one tells nothing.
    for headers in ("traces_headers", "lineage_headers"):
        _amend(
            definitions,
            ("TelemetrySettings", headers),
            {"additionalProperties": {"type": "string", "pattern": _REFERENCE}},
        )
    return settings, definitions


def _amend(definitions: Schema, path: Path, rule: Schema) -> None:
    section, key = path
    definitions[section]["properties"][key].update(rule)
