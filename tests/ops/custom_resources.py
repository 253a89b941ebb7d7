"""Objects of other people's kinds: checked key by key against what their definitions have, and by
the Prometheus operator's own validators.

The schemas here are closed lists of the keys that the chart may write, so that a mistyped one is
found; an API server would drop it silently. The validators know types, patterns and what is
required; they come from the npm package that `make crds` puts into build/crds where npm is
installed. (Prometheus operator: API reference; Spark operator: API reference, v1beta2.)
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema

from tests.ops.helm import Manifest

VALIDATORS = Path("build/crds")
_PROGRAM = Path(__file__).parent / "crds" / "validate.mjs"
Schema = dict[str, Any]


def _closed(properties: Schema, *, required: tuple[str, ...] = ()) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(required)}


def _keys(*names: str) -> Schema:
    return {name: {} for name in names}


def _strings(*names: str) -> Schema:
    return dict.fromkeys(names, _STRING)


_STRING: Schema = {"type": "string"}
_KEY = _closed(_keys("name", "key"))
_STRINGS: Schema = {"type": "object", "additionalProperties": _STRING}
_LIST: Schema = {"type": "array"}
_RELABELINGS: Schema = {
    "type": "array",
    "items": _closed(_keys("sourceLabels", "separator", "targetLabel", "regex", "modulus", "replacement", "action")),
}
_SELECTOR = _closed({"matchLabels": _STRINGS, "matchExpressions": _LIST})
_ENDPOINT = {
    **_strings("port", "path", "interval", "scrapeTimeout"),
    "relabelings": _RELABELINGS,
    "authorization": _closed({"type": _STRING, "credentials": _KEY}),
    "scheme": {"enum": ["http", "https"]},
    "tlsConfig": _closed(
        {"serverName": _STRING, "ca": _closed({"secret": _KEY}), "cert": _closed({"secret": _KEY}), "keySecret": _KEY}
    ),
    "metricRelabelings": _RELABELINGS,
}
_ENDPOINTS: Schema = {"type": "array", "minItems": 1, "items": _closed(_ENDPOINT, required=("port",))}
_RULE = _closed(
    {**_strings("alert", "record", "expr", "for", "keep_firing_for"), "labels": _STRINGS, "annotations": _STRINGS},
    required=("expr",),
)
_MATCH: Schema = {"type": "array", "items": _closed(_keys("name", "value", "matchType"), required=("name", "value"))}
_INHIBIT = _closed({"sourceMatch": _MATCH, "targetMatch": _MATCH, "equal": _LIST})
_GROUP = _closed(
    {"name": _STRING, "interval": _STRING, "rules": {"type": "array", "items": _RULE}}, required=("name", "rules")
)
_ROLE = {
    "cores": {"type": "integer", "minimum": 1},
    **_strings("memory", "memoryOverhead", "serviceAccount"),
    "template": {"type": "object"},
}
_APPLICATION = _closed(
    {
        "type": {"enum": ["Java", "Python", "Scala", "R"]},
        "pythonVersion": {"enum": ["2", "3"]},
        "mode": {"enum": ["cluster", "client"]},
        **_strings("sparkVersion", "image", "imagePullPolicy", "mainApplicationFile"),
        "imagePullSecrets": {"type": "array", "items": _STRING},
        "arguments": {"type": "array", "items": _STRING},
        "suspend": {"type": "boolean"},
        "restartPolicy": _closed({"type": {"enum": ["Never", "Always", "OnFailure"]}}),
        "sparkConf": _STRINGS,
        "timeToLiveSeconds": {"type": "integer"},
        "driver": _closed(_ROLE),
        "executor": _closed({**_ROLE, "instances": {"type": "integer", "minimum": 1}}),
    },
    required=("driver", "executor", "mainApplicationFile", "sparkVersion", "type"),
)
SPECS: dict[str, tuple[str, Schema]] = {
    "PodMonitor": (
        "monitoring.coreos.com/v1",
        _closed({"selector": _SELECTOR, "podMetricsEndpoints": _ENDPOINTS}, required=("selector",)),
    ),
    "ServiceMonitor": (
        "monitoring.coreos.com/v1",
        _closed({"selector": _SELECTOR, "endpoints": _ENDPOINTS}, required=("selector", "endpoints")),
    ),
    "PrometheusRule": ("monitoring.coreos.com/v1", _closed({"groups": {"type": "array", "items": _GROUP}})),
    "AlertmanagerConfig": (
        "monitoring.coreos.com/v1alpha1",
        _closed({"inhibitRules": {"type": "array", "items": _INHIBIT}}),
    ),
    "SparkApplication": ("sparkoperator.k8s.io/v1beta2", _APPLICATION),
}
"""By kind: its apiVersion and what its spec may hold."""


def problems(manifest: Manifest) -> list[str]:
    """What the closed lists have against one object."""
    version, schema = SPECS[manifest["kind"]]
    found = [] if manifest["apiVersion"] == version else [f"apiVersion {manifest['apiVersion']}, not {version}"]
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest["spec"])
    return found + [f"spec.{error.json_path.removeprefix('$.')}: {error.message}" for error in errors]


def validators_missing() -> str:
    """Why the operator's validators cannot be used; empty when they can."""
    if shutil.which("node") is None:
        return "node is not installed, so that the Prometheus operator's own validators cannot run"
    if not (VALIDATORS / ".done").exists():
        return "the Prometheus operator's validators are not in build/crds; `make crds` puts them there"
    return ""


def verdicts(manifests: list[Manifest]) -> list[str | None]:
    """What the operator's validators say to each object; None for a valid one."""
    # Node looks for packages beside the program.
    program = VALIDATORS / _PROGRAM.name
    shutil.copyfile(_PROGRAM, program)
    done = subprocess.run(
        ["node", str(program)], input=json.dumps(manifests), capture_output=True, text=True, check=True, timeout=60
    )
    answers: list[str | None] = json.loads(done.stdout)
    return answers
