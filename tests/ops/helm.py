"""Helm, as a library: the chart rendered and linted as `helm template` and `helm lint` do it,
without a cluster.

Invariant: every test sees the chart through here, so that another way to call Helm is a change of
this file alone.
"""

import functools
import json
from pathlib import Path
from typing import Any

import yaml
from helm_python import chart as native
from helm_python.errors import HelmError

CHART = Path("helm/sluice")
RELEASE = "shop"
NAMESPACE = "data"
Values = dict[str, Any]
Manifest = dict[str, Any]

_SEVERITY_INFO = 1


class Refused(Exception):
    """Helm refused values or template; its text is what the user would see."""


def ci_files() -> list[Path]:
    return sorted((CHART / "ci").glob("*-values.yaml"))


def values_of(path: Path) -> Values:
    """A file of values, read as Helm reads it."""
    values: Values = native.values_from_yaml(path.read_text(encoding="utf-8"))
    return values


def feature(name: str) -> Values:
    """The values of one feature, as a copy of one's own."""
    return values_of(CHART / "ci" / f"{name}-values.yaml")


def changed(name: str, path: str, value: Any) -> Values:
    """The values of a feature with one key (`above/key`) set."""
    values = feature(name)
    level = values
    *above, last = path.split("/")
    for part in above:
        level = level.setdefault(part, {})
    level[last] = value
    return values


@functools.lru_cache(maxsize=1)
def loaded() -> native.Chart:
    return native.Chart.load(CHART)


def texts(values: Values) -> dict[str, str]:
    """What each template becomes, by its path below the chart. Raises Refused."""
    return dict(_texts(json.dumps(values)))


@functools.lru_cache(maxsize=256)
def _texts(values: str) -> dict[str, str]:
    try:
        loaded().validate_schema(json.loads(values))
        rendered = loaded().render(json.loads(values), name=RELEASE, namespace=NAMESPACE)
    except HelmError as error:
        raise Refused(str(error)) from error
    return {path.removeprefix("sluice/"): text for path, text in rendered.items()}


def render(values: Values) -> list[Manifest]:
    """Every manifest of the release, test pods included. Raises Refused."""
    documents = [
        document
        for path, text in texts(values).items()
        if not path.endswith(".txt")
        for document in yaml.load_all(text, Loader=yaml.CSafeLoader)
    ]
    return [document for document in documents if document]


def notes(values: Values) -> str:
    return texts(values)["templates/NOTES.txt"]


def findings(values: Values) -> list[str]:
    """What `helm lint --strict` says, beyond information."""
    report = native.lint(CHART, values, strict=True)
    return [
        f"{message['path']}: {message['error']}"
        for message in report["messages"]
        if message["severity"] > _SEVERITY_INFO
    ] + list(report["errors"])
