"""Every feature keeps to every policy, and every policy is able to refuse."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ops import helm, manifests, policies
from tests.ops.helm import Manifest
from tests.ops.policies import POLICIES

FEATURES = [pytest.param(path, id=path.stem.removesuffix("-values")) for path in helm.ci_files()]


@pytest.mark.parametrize("path", FEATURES)
def test_a_feature_keeps_to_every_policy(path: Path) -> None:
    rendered = helm.render(helm.values_of(path))
    assert list(manifests.pods(rendered))
    found = {policy.__name__: problems for policy in POLICIES if (problems := list(policy(rendered)))}
    assert found == {}


def _pod_spec(rendered: list[Manifest], component: str = "ingest") -> dict[str, Any]:
    return manifests.pod(rendered, component).spec


def _container(rendered: list[Manifest], component: str = "ingest") -> dict[str, Any]:
    container: dict[str, Any] = _pod_spec(rendered, component)["containers"][0]
    return container


def _first(rendered: list[Manifest], kind: str) -> dict[str, Any]:
    return manifests.of_kind(rendered, kind)[0]


Breaks = Callable[[list[Manifest]], Any]
BREAKAGES: dict[Callable[[list[Manifest]], Any], list[tuple[str, Breaks]]] = {
    policies.no_secret_is_written_out: [
        ("default", lambda all_: all_.append({"kind": "Secret", "metadata": {"name": "x"}})),
        ("default", lambda all_: _first(all_, "ConfigMap")["data"].update(x="dsn: postgresql://u:p@h/d")),
        ("default", lambda all_: _container(all_)["env"].append({"name": "PGPASSWORD", "value": "x"})),
    ],
    policies.containers_are_confined: [
        ("default", lambda all_: _pod_spec(all_).pop("securityContext")),
        ("default", lambda all_: _container(all_).pop("securityContext")),
        (
            "kubernetes",
            lambda all_: _container(all_, "applier")["securityContext"].update(readOnlyRootFilesystem=False),
        ),
        ("spark-application", lambda all_: _pod_spec(all_, "executor").update(hostNetwork=True)),
    ],
    policies.tokens_only_where_needed: [
        ("default", lambda all_: _pod_spec(all_, "applier").update(automountServiceAccountToken=True)),
        ("kubernetes", lambda all_: _pod_spec(all_, "applier").pop("automountServiceAccountToken")),
        ("default", lambda all_: _first(all_, "ServiceAccount").pop("automountServiceAccountToken")),
    ],
    policies.rights_are_the_driver_s: [
        ("kubernetes", lambda all_: _first(all_, "Role")["rules"][0]["verbs"].append("*")),
        ("kubernetes", lambda all_: _first(all_, "Role")["rules"][0]["resources"].append("secrets")),
        ("default", lambda all_: all_.append({"kind": "ClusterRole"})),
    ],
    policies.probes_cannot_kill_a_long_flush: [
        ("default", lambda all_: _container(all_).pop("livenessProbe")),
        ("default", lambda all_: _container(all_)["livenessProbe"]["httpGet"].update(path="/readyz")),
        ("default", lambda all_: _container(all_)["livenessProbe"].update(failureThreshold=1)),
        ("default", lambda all_: _pod_spec(all_).update(terminationGracePeriodSeconds=20)),
    ],
    policies.at_most_one: [
        ("default", lambda all_: _first(all_, "StatefulSet")["spec"].update(replicas=2)),
        ("default", lambda all_: all_.append({"kind": "Deployment", "metadata": {"name": "x"}})),
    ],
    policies.resources_are_stated: [
        ("default", lambda all_: _container(all_)["resources"].pop("limits")),
        ("default", lambda all_: _pod_spec(all_)["volumes"].append({"name": "x", "emptyDir": {}})),
    ],
    policies.images_are_exact: [
        ("default", lambda all_: _container(all_).update(image="sluice-ingest:latest")),
        (
            "spark-application",
            lambda all_: _first(all_, "SparkApplication")["spec"].update(image="localhost:5000/sluice-applier"),
        ),
    ],
    policies.selectors_choose_their_pods: [
        ("default", lambda all_: _first(all_, "Service")["spec"]["selector"].pop("app.kubernetes.io/component")),
        ("default", lambda all_: _first(all_, "Service")["spec"]["selector"].update({"helm.sh/chart": "sluice-0.1.0"})),
        ("pod-monitor", lambda all_: _first(all_, "PodMonitor")["spec"]["selector"]["matchLabels"].update(x="y")),
    ],
    policies.no_port_is_open_to_all: [
        ("network-policy", lambda all_: _first(all_, "NetworkPolicy")["spec"]["ingress"][0].update({"from": []})),
        ("network-policy", lambda all_: _first(all_, "NetworkPolicy")["spec"]["ingress"][0].pop("from")),
    ],
    policies.nothing_blocks_a_node_s_draining: [
        ("disruption-budget", lambda all_: _first(all_, "PodDisruptionBudget")["spec"].update(maxUnavailable=0)),
    ],
    policies.the_applier_knows_nothing_of_the_source: [
        ("secrets", lambda all_: _container(all_, "applier")["env"].append({"name": "PGSSLKEY", "value": "x"})),
    ],
    policies.volumes_and_mounts_agree: [
        ("default", lambda all_: _container(all_)["volumeMounts"].append({"name": "nowhere", "mountPath": "/x"})),
        ("spill-volume", lambda all_: _pod_spec(all_, "applier")["volumes"].append({"name": "spill", "emptyDir": {}})),
    ],
    policies.accounts_exist: [
        ("default", lambda all_: all_.remove(_first(all_, "ServiceAccount"))),
    ],
}
BROKEN = [(policy, *how) for policy, ways in BREAKAGES.items() for how in ways]


@pytest.mark.parametrize(
    ("policy", "feature", "broken"),
    BROKEN,
    ids=[f"{policy.__name__}-{number}" for number, (policy, _, _) in enumerate(BROKEN)],
)
def test_a_policy_refuses_what_breaks_it(
    policy: Callable[[list[Manifest]], Any], feature: str, broken: Callable[[list[Manifest]], Any]
) -> None:
    rendered = copy.deepcopy(helm.render(helm.feature(feature)))
    assert list(policy(rendered)) == []
    broken(rendered)
    assert list(policy(rendered))


def test_every_policy_has_been_broken_once() -> None:
    assert BREAKAGES.keys() == set(POLICIES)
