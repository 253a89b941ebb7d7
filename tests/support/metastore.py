"""Hive metastores on loopback: that of Spark's own jars (2.3), and the standalone one of Hive 4.0, whose jars are
fetched when they are first asked for and checked by their hashes: `python -m tests.support.metastore` fetches them now.
"""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from sluice_spark import jars
from tests.support import commands
from tests.support.answers import listens
from tests.support.pipeline import wait_until
from tests.support.spark_cluster import SPARK, java_daemon
from tools.local.ports import free_port

HIVE_4 = jars.JarSet(
    "hive4",
    (
        "org.apache.hive:hive-standalone-metastore-server:4.0.1",
        "org.apache.hive:hive-exec:4.0.1",
        "org.apache.hadoop:hadoop-hdfs:3.5.0",
        "org.antlr:antlr-runtime:3.5.3",
    ),
    # Spark has what a metastore needs of Hadoop and of logging.
    (
        "jdk.tools:jdk.tools",
        "org.apache.hadoop:hadoop-common",
        "org.apache.hadoop:hadoop-auth",
        "org.apache.hadoop:hadoop-annotations",
        "org.apache.hadoop:hadoop-hdfs-client",
        "org.apache.hadoop:hadoop-client-api",
        "log4j:log4j",
        "org.apache.logging.log4j:log4j-1.2-api",
        "org.apache.logging.log4j:log4j-core",
        "org.apache.logging.log4j:log4j-slf4j-impl",
        "org.apache.logging.log4j:log4j-web",
        "org.slf4j:slf4j-api",
        "org.slf4j:slf4j-log4j12",
    ),
    command="python -m tests.support.metastore",
    recorded_in=Path(__file__).parent,
)
_SECONDS = 120


@dataclass(frozen=True)
class Metastore:
    """`conf` is what a Spark session needs to read through it."""

    port: int
    conf: dict[str, str]

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"


@contextmanager
def metastore(folder: Path, *, hive4: bool = False) -> Iterator[Metastore]:
    """A metastore of its own, whose database is below `folder` and stays there."""
    port = free_port()
    server = jars.fetch_set(HIVE_4, jars.default_directory()) if hive4 else [SPARK / "jars" / "*"]
    of_spark = ("hadoop-client-", "log4j-", "slf4j-api-") if hive4 else ()
    own = [path for name in of_spark for path in SPARK.glob(f"jars/{name}*.jar")]
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:{folder}/database;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "hive.metastore.schema.verification": "false",
        "hive.async.log.enabled": "false",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.warehouse.dir": (folder / "warehouse").as_uri(),
        "metastore.warehouse.external.dir": (folder / "external").as_uri(),
        "metastore.event.db.notification.api.auth": "false",
    }
    place = folder / "conf"
    place.mkdir(parents=True, exist_ok=True)
    text = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    for name in ("hive-site.xml", "metastore-site.xml"):
        (place / name).write_text(f"<configuration>{text}</configuration>", encoding="utf-8")
    classes = ":".join(map(str, [place, *own, *server]))
    main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
    with java_daemon(folder / f"server-{port}", ["-cp", classes, main, "-p", str(port)]):
        wait_until(lambda: listens(port), what="the metastore answers", timeout=_SECONDS)
        yield Metastore(port, _spark_conf(port, hive4=hive4))


def _spark_conf(port: int, *, hive4: bool) -> dict[str, str]:
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}",
    }
    if not hive4:
        return conf
    # The client that Spark has of itself calls what Hive 4.0 has no more.
    found = [path.as_uri() for path in jars.fetch_set(HIVE_4, jars.default_directory())]
    hadoop = [path.as_uri() for path in SPARK.glob("jars/hadoop-client-*.jar")]
    return {
        **conf,
        "spark.sql.hive.metastore.version": "4.0.1",
        "spark.sql.hive.metastore.jars": "path",
        "spark.sql.hive.metastore.jars.path": ",".join([*found, *hadoop]),
    }


class Door:
    """A port of its own that leads to `port` while it is open. While it is shut, whoever knocks waits for an answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"
        self.knocks = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        """Nobody comes in any more; who waits in front of it goes away."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._open.set()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.knocks += 1
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            self._open.wait()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as server:
                back = threading.Thread(target=_forward, args=(server, client))
                back.start()
                _forward(client, server)
                back.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


_READER = """
import json, sys
from pyspark.sql import SparkSession
from tools.local.jvm import QUICK
conf, jars, queries = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
    "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
small = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {QUICK}",
}
session = builder.config(map={**small, **conf}).getOrCreate()
print(json.dumps([[row.asDict() for row in session.sql(query).collect()] for query in queries], default=str))
"""


def read_in_spark(conf: dict[str, str], *queries: str) -> list[list[dict[str, Any]]]:
    """What a Spark session in a process of its own, as a reader would have it, answers to each of `queries`."""
    delta = ",".join(map(str, jars.classpath(jars.default_directory(), s3=False)))
    done = commands.ended(sys.executable, "-c", _READER, json.dumps(conf), delta, json.dumps(queries), timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    jars.fetch_set(HIVE_4, jars.default_directory())
