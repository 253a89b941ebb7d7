"""Ways through rendered manifests: objects by kind and name, pods wherever they are written,
containers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.ops.helm import Manifest

PIPELINE = "sluice/pipeline"
"""The label of what belongs to one of several pipelines."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that some manifest describes. `of_spark`: Spark fills in image, command and resources,
    so that they are not written here.
    """

    owner: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    of_spark: bool

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def pipeline(self) -> str:
        """Empty for a pod that serves all pipelines of its release, or the only one."""
        return self.labels.get(PIPELINE, "")

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def container(self, name: str) -> dict[str, Any]:
        return next(container for container in self.spec["containers"] if container["name"] == name)


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    found = [manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name]
    assert len(found) == 1, (
        f"{len(found)} objects {kind} {name}, of "
        f"{sorted(manifest['metadata']['name'] for manifest in of_kind(manifests, kind))}"
    )
    return found[0]


def pods(manifests: list[Manifest]) -> Iterator[Pod]:
    """Every pod: in a StatefulSet, as such, as a template of the Spark operator or of Spark itself."""
    for manifest in manifests:
        owner = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            yield _pod(owner, manifest)
        elif manifest["kind"] == "StatefulSet":
            yield _pod(owner, manifest["spec"]["template"])
        elif manifest["kind"] == "SparkApplication":
            for role in ("driver", "executor"):
                yield _pod(f"{owner} {role}", manifest["spec"][role]["template"], of_spark=True)
        elif manifest["kind"] == "ConfigMap" and "executor.yaml" in manifest["data"]:
            yield _pod(f"{owner} executor.yaml", yaml.safe_load(manifest["data"]["executor.yaml"]), of_spark=True)


def pod(manifests: list[Manifest], component: str, *, pipeline: str = "") -> Pod:
    """The one pod of a component, and of a pipeline where there are several."""
    found = [each for each in pods(manifests) if each.component == component and each.pipeline == pipeline]
    assert len(found) == 1, f"{len(found)} pods of component {component}"
    return found[0]


def _pod(owner: str, template: dict[str, Any], *, of_spark: bool = False) -> Pod:
    metadata = template["metadata"]
    return Pod(owner, metadata.get("labels", {}), metadata.get("annotations", {}), template["spec"], of_spark)


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Variables with a value written out; those from a Secret have the text `secret NAME KEY`, as a password may be."""
    found = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = f"secret {source['name']} {source['key']}" if source else variable["value"]
    return found


def configurations(manifests: list[Manifest], pod: Pod) -> dict[str, str]:
    """What the pod's first container sees of ConfigMaps of the release, by the path at which it is mounted: as files
    of a volume, or by its path in one.
    """
    maps = {item["metadata"]["name"]: item["data"] for item in of_kind(manifests, "ConfigMap")}
    found: dict[str, str] = {}
    for mount in pod.spec["containers"][0].get("volumeMounts", []):
        volume: dict[str, Any] = next((one for one in pod.spec["volumes"] if one["name"] == mount["name"]), {})
        sources = [one["configMap"] for one in volume.get("projected", {}).get("sources", [])]
        for source in [*sources, *([volume["configMap"]] if "configMap" in volume else [])]:
            data = maps.get(source["name"], {})
            for item in source["items"]:
                if mount.get("subPath") == item["path"] and item["key"] in data:
                    found[mount["mountPath"]] = data[item["key"]]
    return found
