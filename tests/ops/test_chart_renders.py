"""Every feature of the chart becomes manifests that Kubernetes, old and new, and the operators
accept.
"""

import functools
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from tests.ops import custom_resources, helm, manifests
from tests.ops.helm import CHART, Manifest
from tests.support.extent import cases

FEATURES = [pytest.param(path, id=path.stem.removesuffix("-values")) for path in helm.ci_files()]
_OUR_KINDS = {"monitoring.coreos.com/v1", "monitoring.coreos.com/v1alpha1", "sparkoperator.k8s.io/v1beta2"}


def _kubernetes_versions() -> list[str]:
    """The oldest that the chart takes, one in the middle, the newest whose schemas there are."""
    oldest = (
        str(yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]).removeprefix(">=").removesuffix("-0")
    )
    known = [
        version for version in dict.fromkeys(utils.all_versions()) if utils.Version(version) >= utils.Version(oldest)
    ]
    assert known[0] == oldest, "the oldest version that the chart takes can be validated"
    return [known[0], known[len(known) // 2], known[-1]]


@functools.cache
def _everything() -> tuple[Manifest, ...]:
    """The different manifests of all features, each once."""
    found = {
        json.dumps(manifest, sort_keys=True): manifest
        for path in helm.ci_files()
        for manifest in helm.render(helm.values_of(path))
    }
    return tuple(found.values())


@pytest.fixture(scope="module")
def schemas_read_once(monkeypatch_module: pytest.MonkeyPatch) -> None:
    """The library reads megabytes of definitions again for each object."""
    monkeypatch_module.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))


@pytest.fixture(scope="module")
def monkeypatch_module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("path", FEATURES)
def test_lint_has_nothing_to_say(path: Path) -> None:
    assert helm.findings(helm.values_of(path)) == []


@pytest.mark.parametrize("path", FEATURES)
def test_every_object_has_its_own_name_and_the_release_s_namespace(path: Path) -> None:
    rendered = helm.render(helm.values_of(path))
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendered]
    assert len(names) == len(set(names))
    ours = [manifest for manifest in rendered if "app.kubernetes.io/name" in manifest["metadata"].get("labels", {})]
    assert ours
    assert {manifest["metadata"]["namespace"] for manifest in ours} == {helm.NAMESPACE}


@pytest.mark.parametrize("version", cases(_kubernetes_versions(), quick=_kubernetes_versions()[-1:]))
def test_kubernetes_accepts_every_object_of_every_feature(version: str, schemas_read_once: None) -> None:
    checked = 0
    for manifest in _everything():
        if manifest["apiVersion"] not in _OUR_KINDS:
            kubernetes_validate.validate(manifest, version, strict=True)
            checked += 1
    for pod in manifests.pods(list(_everything())):
        # What Spark fills in is left out here; the schema asks for a container's name alone.
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod.spec}, version, strict=True
        )
        checked += 1
    assert checked > 50


def test_objects_of_other_kinds_have_known_keys_only() -> None:
    found = [manifest for manifest in _everything() if manifest["apiVersion"] in _OUR_KINDS]
    assert {manifest["kind"] for manifest in found} >= {"PodMonitor", "ServiceMonitor", "SparkApplication"}
    assert {manifest["kind"]: problems for manifest in found if (problems := custom_resources.problems(manifest))} == {}


def test_the_prometheus_operator_s_validators_accept_its_objects() -> None:
    if reason := custom_resources.validators_missing():
        pytest.skip(reason)
    found = [manifest for manifest in _everything() if manifest["apiVersion"].startswith("monitoring.")]
    broken = json.loads(json.dumps(manifests.of_kind(found, "PodMonitor")[0]))
    broken["spec"]["podMetricsEndpoints"][0]["interval"] = "30 seconds"
    *verdicts, refused = custom_resources.verdicts([*found, broken])
    assert verdicts == [None] * len(found)
    assert refused
    assert "interval" in refused


def test_two_releases_in_one_namespace_share_no_name() -> None:
    ours = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in helm.render(helm.feature("kubernetes"))}
    theirs = {(kind, name.replace(helm.RELEASE, "other", 1)) for kind, name in ours}
    assert not ours & theirs


def test_a_long_release_name_still_makes_legal_names() -> None:
    values = helm.feature("kubernetes") | {"fullnameOverride": "a" * 60}
    for manifest in helm.render(values):
        assert len(manifest["metadata"]["name"]) <= 52, (
            "a StatefulSet's pods and their revision labels need the rest of 63"
        )
