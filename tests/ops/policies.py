"""What every release keeps to, whatever the values: one function for each rule, which returns what
breaks it.

Pods come from everywhere a pod may be described: StatefulSets, test pods, templates for Spark and
its operator.
"""

import re
from collections.abc import Callable, Iterator
from inspect import isfunction

from sluice.ingest.options import STOP_SECONDS
from tests.ops.helm import Manifest
from tests.ops.manifests import PIPELINE, environment, of_kind, pods

Problems = Iterator[str]

_SECRET_NAME = re.compile(r"(?i)(password|secret_access|secret\.key|token|account_key|access_key)")
_WITH_TOKEN = {"applier"}
"""Components that may talk with the API server."""
_SERVED = ("ingest", "applier")
"""Components with an endpoint."""


def no_secret_is_written_out(manifests: list[Manifest]) -> Problems:
    """Neither a Secret of our own, nor a password in a ConfigMap, an annotation or an environment."""
    for manifest in manifests:
        if manifest["kind"] == "Secret":
            yield f"Secret {manifest['metadata']['name']}"
    for manifest in of_kind(manifests, "ConfigMap"):
        for name, text in manifest["data"].items():
            if re.search(r"://[^/@\s:]*:[^@$\s]+@", text) or re.search(r"(?i)(?<![\w{])password\s*[=:]\s*[^\s$]", text):
                yield f"ConfigMap {manifest['metadata']['name']} {name}"
    for pod in pods(manifests):
        for container in pod.containers:
            for name, value in environment(container).items():
                if (
                    _SECRET_NAME.search(name)
                    and not value.startswith("secret ")
                    and not name.endswith(("_FILE", "_PATH"))
                ):
                    yield f"{pod.owner} {container['name']} {name}"


def containers_are_confined(manifests: list[Manifest]) -> Problems:
    """No root, no writable root file system, no capability, no way up, the runtime's seccomp
    profile.
    """
    for pod in pods(manifests):
        of_pod = pod.spec.get("securityContext", {})
        if of_pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.owner}: seccomp"
        if not of_pod.get("runAsNonRoot") or not of_pod.get("runAsUser"):
            yield f"{pod.owner}: root"
        if {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys():
            yield f"{pod.owner}: the host's own namespaces"
        for container in pod.containers:
            own = container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
                yield f"{pod.owner} {container['name']}: privileges"
            if own.get("readOnlyRootFilesystem") is not True:
                yield f"{pod.owner} {container['name']}: writable root"
            if own.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{pod.owner} {container['name']}: capabilities"


def tokens_only_where_needed(manifests: list[Manifest]) -> Problems:
    """A token of Kubernetes only for a driver with executors; no account offers one unasked; no
    links to services in the environment.
    """
    executors = any(pod.component == "executor" for pod in pods(manifests))
    for pod in pods(manifests):
        needed = executors and pod.component in _WITH_TOKEN
        if pod.spec.get("automountServiceAccountToken") is not needed:
            yield f"{pod.owner}: token"
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner}: service links"
    for account in of_kind(manifests, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {account['metadata']['name']}: token"


def rights_are_the_driver_s(manifests: list[Manifest]) -> Problems:
    """No right in the whole cluster; a Role only with executors, without a wildcard and without
    Secrets.
    """
    for manifest in manifests:
        if manifest["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            yield manifest["kind"]
    for role in of_kind(manifests, "Role"):
        if not any(pod.component == "executor" for pod in pods(manifests)):
            yield f"Role {role['metadata']['name']} without executors"
        for rule in role["rules"]:
            if "*" in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]] or "secrets" in rule["resources"]:
                yield f"Role {role['metadata']['name']}: {rule}"


def probes_cannot_kill_a_long_flush(manifests: list[Manifest]) -> Problems:
    """Each of the three probes with a path of its own on the served port, as it is served; two minutes of silence
    before a restart; time to stop.
    """
    for pod in pods(manifests):
        if pod.component not in _SERVED:
            continue
        container = pod.spec["containers"][0]
        served_by_tls = "SLUICE_TELEMETRY__TLS_CERT_PATH" in environment(container)
        secured = {"scheme": "HTTPS"} if served_by_tls else {}
        for name, path in ("startupProbe", "/startupz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz"):
            if container.get(name, {}).get("httpGet") != {"path": path, "port": "metrics", **secured}:
                yield f"{pod.owner}: {name}"
        liveness = container.get("livenessProbe", {})
        if liveness.get("periodSeconds", 0) * liveness.get("failureThreshold", 0) < 120:
            yield f"{pod.owner}: liveness is impatient"
        if pod.spec.get("terminationGracePeriodSeconds", 0) < STOP_SECONDS + 10:
            yield f"{pod.owner}: no time to drain"
        if "metrics" not in [port["name"] for port in container.get("ports", [])]:
            yield f"{pod.owner}: port metrics"


def at_most_one(manifests: list[Manifest]) -> Problems:
    """One pod for each component, in a StatefulSet, and nothing that could make it two."""
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "ReplicaSet", "DaemonSet", "HorizontalPodAutoscaler"):
            yield f"{manifest['kind']} {manifest['metadata']['name']}"
    for sets in of_kind(manifests, "StatefulSet"):
        if sets["spec"]["replicas"] not in (0, 1):
            yield f"StatefulSet {sets['metadata']['name']}: {sets['spec']['replicas']} replicas"
    if sum(manifest["spec"]["mode"] == "cluster" for manifest in of_kind(manifests, "SparkApplication")) > 1:
        yield "two appliers"


def resources_are_stated(manifests: list[Manifest]) -> Problems:
    """Every container asks for processor and memory and has a limit of memory; every emptyDir has
    one of size.
    """
    for pod in pods(manifests):
        for container in pod.containers:
            if pod.of_spark and container["name"].startswith("spark-kubernetes-"):
                continue
            resources = container.get("resources", {})
            if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get(
                "limits", {}
            ):
                yield f"{pod.owner} {container['name']}"
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume and not volume["emptyDir"].get("sizeLimit"):
                yield f"{pod.owner} volume {volume['name']}"


def images_are_exact(manifests: list[Manifest]) -> Problems:
    """A tag that is no moving one, or a digest."""
    images = [container["image"] for pod in pods(manifests) for container in pod.containers if "image" in container]
    images += [manifest["spec"]["image"] for manifest in of_kind(manifests, "SparkApplication")]
    for image in images:
        tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest", "main", "edge"):
            yield image


def selectors_choose_their_pods(manifests: list[Manifest]) -> Problems:
    found = list(pods(manifests))
    kinds = ("StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy")
    for item in (one for kind in kinds for one in of_kind(manifests, kind)):
        owner, own = f"{item['kind']} {item['metadata']['name']}", item["metadata"]["labels"]
        selector = item["spec"].get("selector") or item["spec"]["podSelector"]
        labels = selector.get("matchLabels", selector)
        chosen = [pod for pod in found if labels.items() <= pod.labels.items()]
        if {pod.component for pod in chosen} != {own["app.kubernetes.io/component"]}:
            yield f"{owner} chooses {sorted({pod.component for pod in chosen})}"
        if {pod.pipeline for pod in chosen} != {own.get(PIPELINE, "")}:
            yield f"{owner} chooses pods of another pipeline"
        if {"app.kubernetes.io/version", "helm.sh/chart"} & labels.keys():
            yield f"{owner} chooses by a version"
    for monitor in [*of_kind(manifests, "PodMonitor"), *of_kind(manifests, "ServiceMonitor")]:
        wanted = monitor["spec"]["selector"]["matchExpressions"][0]["values"]
        labels = monitor["spec"]["selector"]["matchLabels"]
        if wanted != ["ingest", "applier"] or not all(labels.items() <= pod.labels.items() for pod in found):
            yield f"{monitor['kind']} chooses {wanted}"


def no_port_is_open_to_all(manifests: list[Manifest]) -> Problems:
    """A NetworkPolicy names who may come in: without names, or with an empty list of them, everybody
    may. Probes come from the pod's own node, whose traffic no policy holds back.
    """
    for policy in of_kind(manifests, "NetworkPolicy"):
        if "Ingress" not in policy["spec"]["policyTypes"]:
            yield f"NetworkPolicy {policy['metadata']['name']}: no ingress at all"
        for rule in policy["spec"].get("ingress", []):
            if not rule.get("from"):
                yield f"NetworkPolicy {policy['metadata']['name']}: {rule.get('ports')}"


def nothing_blocks_a_node_s_draining(manifests: list[Manifest]) -> Problems:
    """No budget that keeps an only pod."""
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        if budget["spec"].get("maxUnavailable") != 1 or "minAvailable" in budget["spec"]:
            yield f"PodDisruptionBudget {budget['metadata']['name']}"


def the_applier_knows_nothing_of_the_source(manifests: list[Manifest]) -> Problems:
    """Neither its Secret nor its certificates reach a pod that runs Spark."""
    for pod in pods(manifests):
        if pod.component in ("applier", "executor"):
            yield from (
                f"{pod.owner} volume {volume['name']}"
                for volume in pod.spec.get("volumes", [])
                if volume["name"] in ("source", "tls")
            )
            for container in pod.containers:
                dsn = environment(container).get("SLUICE_SOURCE__DSN", "postgresql://")
                if dsn != "postgresql://" or any(
                    name.startswith("PG") or name == "SLUICE_SOURCE__DSN_FILE" for name in environment(container)
                ):
                    yield f"{pod.owner} {container['name']}"


def volumes_and_mounts_agree(manifests: list[Manifest]) -> Problems:
    """Every mount has its volume, no mount is there twice, and /tmp can be written."""
    claims = {
        claim["metadata"]["name"]
        for item in of_kind(manifests, "StatefulSet")
        for claim in item["spec"].get("volumeClaimTemplates", [])
    }
    for pod in pods(manifests):
        volumes = [volume["name"] for volume in pod.spec.get("volumes", [])]
        if len(volumes) != len(set(volumes)) or claims & set(volumes):
            yield f"{pod.owner}: a volume is there twice"
        for container in pod.containers:
            mounts = container.get("volumeMounts", [])
            if not {mount["name"] for mount in mounts} <= {*volumes, *claims}:
                yield f"{pod.owner} {container['name']}: a mount without a volume"
            if len({mount["mountPath"] for mount in mounts}) != len(mounts):
                yield f"{pod.owner} {container['name']}: two mounts in one place"
        if pod.component in (*_SERVED, "executor") and "/tmp" not in [
            mount["mountPath"] for mount in pod.spec["containers"][0]["volumeMounts"]
        ]:
            yield f"{pod.owner}: /tmp"


def accounts_exist(manifests: list[Manifest]) -> Problems:
    """Accounts that pods name exist, unless the values say that they do elsewhere."""
    made = {account["metadata"]["name"] for account in of_kind(manifests, "ServiceAccount")}
    for pod in pods(manifests):
        name = pod.spec.get("serviceAccountName", "default")
        if name.startswith("shop-sluice-") and name not in made:
            yield f"{pod.owner}: {name}"


POLICIES: tuple[Callable[[list[Manifest]], Problems], ...] = tuple(
    one for name, one in globals().items() if isfunction(one) and one.__module__ == __name__
)
"""All of this file."""
