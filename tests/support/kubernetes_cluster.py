"""What a Spark driver meets in Kubernetes, without a cluster: an API server on loopback that allows what the chart's
Role allows and nothing else, and that runs the containers of executors' pods as processes here, with the entry point
of the applier's image.

Owns the requests that Spark makes and the pods that it asks for. It is no Kubernetes: it validates no object, has one
namespace, and pods see this machine's files. (Kubernetes: API Concepts; Spark: Running on Kubernetes.)
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from sluice_spark import jars
from tests.ops import helm
from tests.support.http_stub import StubHandler
from tests.support.spark_cluster import HOSTS, ROOT, SPARK, SparkCluster, python_environments
from tools.local.ports import free_port

ENTRY_POINT = ROOT / "deploy" / "images" / "entrypoint.sh"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_DRIVER_POD = "shop-sluice-applier-0"
_POD_IP = "status.podIP"
Object = dict[str, Any]


class Objects:
    """The objects of one namespace by kind and name, and those who watch them. Safe from several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._version = 0
        self._objects: dict[tuple[str, str], Object] = {}
        self._watchers: list[tuple[str, str, Queue[Object | None]]] = []

    def put(self, kind: str, wanted: Object) -> Object:
        with self.lock:
            self._version += 1
            meta = wanted["metadata"]
            key = kind, meta["name"]
            event = "MODIFIED" if key in self._objects else "ADDED"
            meta.update(resourceVersion=str(self._version), namespace=helm.NAMESPACE)
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            self._objects[key] = wanted
            self._say(kind, event, wanted)
            return wanted

    def get(self, kind: str, name: str) -> Object | None:
        with self.lock:
            return self._objects.get((kind, name))

    def listed(self, kind: str, selector: str) -> Object:
        with self.lock:
            items = [item for (of, _), item in self._objects.items() if of == kind and _matches(item, selector)]
            return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    def delete(self, kind: str, name: str) -> Object | None:
        with self.lock:
            gone = self._objects.pop((kind, name), None)
            if gone is not None:
                self._say(kind, "DELETED", gone)
            return gone

    @contextmanager
    def watched(self, kind: str, selector: str) -> Iterator["Queue[Object | None]"]:
        """The events of these objects from now on; None when the server ends."""
        watcher: tuple[str, str, Queue[Object | None]] = (kind, selector, Queue())
        with self.lock:
            self._watchers.append(watcher)
        try:
            yield watcher[2]
        finally:
            with self.lock:
                self._watchers.remove(watcher)

    def end(self) -> None:
        with self.lock:
            for _, _, queue in self._watchers:
                queue.put(None)

    def _say(self, kind: str, event: str, item: Object) -> None:
        for of, selector, queue in self._watchers:
            if of == kind and _matches(item, selector):
                queue.put({"type": event, "object": json.loads(json.dumps(item))})


def _matches(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels", {})
    for term in filter(None, selector.split(",")):
        name, differs, value = term.partition("!=")
        if differs:
            if labels.get(name) == value:
                return False
        else:
            name, _, value = term.partition("=")
            if labels.get(name) != value:
                return False
    return True


@dataclass
class Pods:
    """Runs the pods of executors. `python` is that of their image."""

    objects: Objects
    folder: Path
    python: Path
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, pod: Object) -> None:
        """In a thread of its own: an API server answers before a container runs."""
        threading.Thread(target=self._run, args=(pod,), daemon=True).start()

    def kill(self, name: str) -> None:
        process = self.running.pop(name, None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    def _run(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        address = HOSTS[len(self.running) % len(HOSTS)]
        (container,) = pod["spec"]["containers"]
        # A pod of a later application has the name of one of an earlier application.
        here = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        environment = self._environment(pod, container, address, here)
        with (here / "pod.log").open("wb") as log:
            command = ["/bin/bash", str(ENTRY_POINT), *container["args"]]
            process = subprocess.Popen(
                command, cwd=here, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.running[name] = process
        self._report(name, "Running", address, {"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        code = process.wait()
        self._report(name, "Failed" if code else "Succeeded", address, {"terminated": {"exitCode": abs(code)}})

    def _environment(self, pod: Object, container: Object, address: str, here: Path) -> dict[str, str]:
        """What the image and the pod set, with each volume in a folder of this machine."""
        mounts = {mount["mountPath"]: here / mount["name"] for mount in container["volumeMounts"]}
        for volume in pod["spec"]["volumes"]:
            folder = here / volume["name"]
            folder.mkdir(parents=True)
            if "configMap" in volume:
                stored = self.objects.get("configmaps", volume["configMap"]["name"])
                for file, text in (stored or {}).get("data", {}).items():
                    (folder / file).write_text(text, encoding="utf-8")
        fields = {"metadata.name": pod["metadata"]["name"], _POD_IP: address}
        given = {}
        for item in container["env"]:
            value = item.get("value") or fields.get(
                item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", ""), ""
            )
            given[item["name"]] = str(mounts.get(value, value))
        java = Path(shutil.which("java") or "java").resolve().parents[1]
        image = {
            "PATH": os.environ["PATH"],
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(SPARK),
            "PYSPARK_PYTHON": str(self.python),
            "SLUICE_JARS": str(jars.default_directory()),
            "HOME": str(here),
            "TMPDIR": str(mounts["/tmp"]),
        }
        return {**image, **given}

    def _report(self, name: str, phase: str, address: str, state: Object) -> None:
        with self.objects.lock:
            pod = self.objects.get("pods", name)
            if pod is None:
                return
            (container,) = pod["spec"]["containers"]
            shown = {"name": container["name"], "ready": phase == "Running", "restartCount": 0, "state": state}
            status = {"phase": phase, "podIP": address, "containerStatuses": [shown]}
            self.objects.put("pods", {**pod, "status": status})


class ApiServer(ThreadingHTTPServer):
    """`denied` are the requests for which the Role has no right; `asked` those for which it has one."""

    daemon_threads = True

    def __init__(self, role: Object, pods: Pods) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects, self.pods = pods.objects, pods
        self.rights = {
            (resource, verb)
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if "" in rule["apiGroups"]
        }
        self.asked: set[tuple[str, str]] = set()
        self.denied: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.objects.end()
        for name in list(self.pods.running):
            self.pods.kill(name)
        self.shutdown()
        self.server_close()


class _Handler(StubHandler):
    server: ApiServer
    protocol_version = "HTTP/1.1"

    def _answer_request(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = self.content()
        prefix = f"/api/v1/namespaces/{helm.NAMESPACE}/"
        if not url.path.startswith(prefix):
            self._say(404, _failure(404, "NotFound"))
            return
        if "Upgrade" in self.headers:
            # The client asks for a web socket first, and is content without one.
            self._say(503, _failure(503, "ServiceUnavailable"))
            return
        kind, _, name = url.path.removeprefix(prefix).partition("/")
        verb = _verb(self.command, name, query)
        if (kind, verb) not in self.server.rights:
            self.server.denied.add((kind, verb))
            self._say(403, _failure(403, "Forbidden"))
            return
        self.server.asked.add((kind, verb))
        if verb == "watch":
            self._watch(kind, query)
        else:
            self._do(kind, verb, name, query, json.loads(body) if body else {})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer_request

    def _do(self, kind: str, verb: str, name: str, query: dict[str, str], body: Object) -> None:
        objects = self.server.objects
        selector = query.get("labelSelector", "")
        if verb == "create":
            made = objects.put(kind, body)
            self._say(201, made)
            if kind == "pods":
                objects.put(kind, {**made, "status": {"phase": "Pending"}})
                self.server.pods.start(made)
        elif verb == "list":
            self._say(200, {"kind": "List", "apiVersion": "v1", **objects.listed(kind, selector)})
        elif verb == "deletecollection":
            for item in objects.listed(kind, selector)["items"]:
                self._delete(kind, item["metadata"]["name"])
            self._say(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        elif (found := objects.get(kind, name)) is None:
            self._say(404, _failure(404, "NotFound"))
        elif verb == "delete":
            self._delete(kind, name)
            self._say(200, found)
        elif verb == "get":
            self._say(200, found)
        else:
            labels = {**found["metadata"].get("labels", {}), **body.get("metadata", {}).get("labels", {})}
            self._say(200, objects.put(kind, {**found, "metadata": {**found["metadata"], "labels": labels}}))

    def _delete(self, kind: str, name: str) -> None:
        self.server.objects.delete(kind, name)
        if kind == "pods":
            self.server.pods.kill(name)

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.server.objects.watched(kind, query.get("labelSelector", "")) as events, suppress(OSError):
            while (event := events.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def _say(self, status: int, answer: Object) -> None:
        self.answer(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})


def _verb(method: str, name: str, query: dict[str, str]) -> str:
    if query.get("watch") == "true":
        return "watch"
    if not name and method in ("GET", "DELETE"):
        return "list" if method == "GET" else "deletecollection"
    return _VERBS[method]


def _failure(code: int, reason: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}


@contextmanager
def kubernetes_cluster(folder: Path) -> Iterator[SparkCluster]:
    """The settings of the chart's applier, with its Role. Fails at the end when Spark asked for more than that."""
    python, bare = python_environments(folder)
    manifests = helm.render(helm.feature("kubernetes"))
    (role,) = [one for one in manifests if one["kind"] == "Role" and one["metadata"]["name"].endswith("-applier")]
    (stored,) = [one for one in manifests if one["kind"] == "ConfigMap" and "executor.yaml" in one["data"]]
    template = folder / "executor.yaml"
    template.write_text(stored["data"]["executor.yaml"], encoding="utf-8")
    lines = stored["data"]["spark-defaults.conf"].splitlines()
    of_the_chart = dict(line.split(None, 1) for line in lines if line.startswith("spark.kubernetes."))
    objects = Objects()
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    objects.put("pods", {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": _DRIVER_POD}, "status": ready})
    with ApiServer(role, Pods(objects, folder, python)) as server:
        conf = {
            **of_the_chart,
            "spark.kubernetes.executor.podTemplateFile": str(template),
            "spark.executor.instances": "2",
            # More of them are killed than Spark takes in the hour that the chart sets.
            "spark.executor.maxNumFailures": "100",
            "spark.driver.port": str(free_port()),
            "spark.driver.blockManager.port": str(free_port()),
        }
        yield SparkCluster(f"k8s://http://127.0.0.1:{server.server_port}", python, bare, folder, conf)
        assert not server.denied, f"the chart's Role lacks {sorted(server.denied)}"
