"""A YARN cluster of real processes on loopback: a resource manager and two node managers, which start executors in
containers of their own with the Python environment of `spark_cluster`.

Hadoop's jars are fetched when they are first asked for, and checked by their hashes: `python -m
tests.support.yarn_cluster` fetches them now. (Hadoop: YARN Architecture; Spark: Running on YARN.)
"""

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from sluice_spark import jars
from tests.support.pipeline import wait_until
from tests.support.spark_cluster import HOSTS, SPARK, SparkCluster, java_daemon, python_environments
from tools.local.ports import free_port

_BOUNCY_CASTLE = "1.82"
YARN = jars.JarSet(
    "yarn",
    (
        "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
        f"org.bouncycastle:bcprov-jdk18on:{_BOUNCY_CASTLE}",
        f"org.bouncycastle:bcpkix-jdk18on:{_BOUNCY_CASTLE}",
    ),
    # Spark has them.
    (
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.slf4j:slf4j-api",
        "org.xerial.snappy:snappy-java",
        "com.google.code.findbugs:jsr305",
        "commons-logging:commons-logging",
    ),
    command="python -m tests.support.yarn_cluster",
    recorded_in=Path(__file__).parent,
)
_SERVER = "org.apache.hadoop.yarn.server."
_MANAGER = f"{_SERVER}resourcemanager."


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[SparkCluster]:
    """One resource manager and two node managers. The driver's environment needs `HADOOP_CONF_DIR`, which is
    `conf` below `folder`.
    """
    found = jars.fetch_set(YARN, jars.default_directory())
    python, bare = python_environments(folder)
    ports = {name: free_port() for name in ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")}
    shared = {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        **{f"yarn.resourcemanager.{name}address": f"127.0.0.1:{port}" for name, port in ports.items()},
        "yarn.resourcemanager.scheduler.class": f"{_MANAGER}scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": "128",
    }
    driver = folder / "conf"
    _configure(driver, folder / "tmp", shared)
    with ExitStack() as processes:

        def start(name: str, host: str, of_the_node: dict[str, str]) -> None:
            place = folder / f"{name}-{host}"
            _configure(place / "conf", place / "tmp", {**shared, **of_the_node})
            classes = [place / "conf", *found, SPARK / "jars" / "*"]
            arguments = ["-cp", ":".join(map(str, classes)), f"{_SERVER}{name.lower()}.{name}"]
            processes.enter_context(java_daemon(place, arguments))

        start("ResourceManager", "127.0.0.1", {})
        for host in HOSTS:
            start("NodeManager", host, _node(host, folder / f"node-{host}"))
        url = f"http://127.0.0.1:{ports['webapp.']}/ws/v1/cluster/metrics"
        wait_until(lambda: _active_nodes(url) == len(HOSTS), what="both nodes are active", timeout=120)
        conf = {
            "spark.yarn.jars": f"local:{SPARK}/jars/*",
            "spark.yarn.stagingDir": (folder / "staging").as_uri(),
            "spark.yarn.am.memory": "512m",
            "spark.executor.memoryOverhead": "512m",
            # The tests kill more containers than an application may lose.
            "spark.executor.maxNumFailures": "100",
        }
        yield SparkCluster("yarn", python, bare, folder, conf)


def _node(host: str, folder: Path) -> dict[str, str]:
    ports = {f"yarn.nodemanager.{name}address": f"{host}:0" for name in ("", "localizer.", "webapp.")}
    return {
        **ports,
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": "2048",
        "yarn.nodemanager.resource.cpu-vcores": "2",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
    }


def _configure(folder: Path, scratch: Path, yarn: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"core-site.xml": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(scratch)}, "yarn-site.xml": yarn}
    for file, values in files.items():
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in values.items()
        )
        (folder / file).write_text(f"<configuration>{properties}</configuration>", encoding="utf-8")


def _active_nodes(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(json.load(answer)["clusterMetrics"]["activeNodes"])
    except OSError:
        return 0


if __name__ == "__main__":
    print(*jars.fetch_set(YARN, jars.default_directory()), sep="\n")
    sys.exit(0)
