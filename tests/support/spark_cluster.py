"""A Spark standalone cluster whose executors share with the driver nothing but a store: processes of their
own on two addresses of the loopback, with another working directory, HOME, TMPDIR and Python environment.

Two addresses, because Spark runs no speculative attempt on the host of the first one.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest

from tools.local.jvm import QUICK

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")
_SECONDS = 60


@dataclass(frozen=True)
class SparkCluster:
    """`python` has Sluice, `bare_python` has only what Sluice needs. `folder` is what executors alone know. `own` is
    what drivers of this cluster must be given.
    """

    url: str
    python: Path
    bare_python: Path
    folder: Path
    own: dict[str, str] = field(default_factory=dict)

    def conf(self, **changed: str) -> dict[str, str]:
        """What a driver must be given, and small processes."""
        return {
            "spark.pyspark.python": str(self.python),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {QUICK}",
            "spark.executor.extraJavaOptions": f"-XX:+UseSerialGC {QUICK}",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            **self.own,
            **changed,
        }


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """One master and two workers of one core each."""
    python, bare = python_environments(folder)
    with ExitStack() as processes:
        master = processes.enter_context(_daemon(folder / "master", "master.Master", ["--host", "127.0.0.1"]))
        url = _said(master, r"(spark://127\.0\.0\.1:\d+)")
        logs = [
            processes.enter_context(
                _daemon(
                    folder / f"worker-{host}",
                    "worker.Worker",
                    ["--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), url],
                )
            )
            for host in HOSTS
        ]
        for log in logs:
            _said(log, r"(Successfully registered)")
        yield SparkCluster(url, python, bare, folder)


def executor_of(python: int) -> int:
    """The process number of the executor that the Python process `python` works for."""
    while b"ExecutorBackend" not in Path(f"/proc/{python}/cmdline").read_bytes():
        python = int(Path(f"/proc/{python}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        assert python > 1, "no executor above that process"
    return python


def python_environments(folder: Path) -> tuple[Path, Path]:
    return _environment(folder / "environment", sluice=True), _environment(folder / "bare", sluice=False)


def _environment(folder: Path, *, sluice: bool) -> Path:
    """Another Python environment with the packages of this one, and with a copy of Sluice, if any."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Unlike a site directory, what such a line names has no lines of its own read: Sluice is not in it.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    if sluice:
        for package in ("service/sluice", "spark_jobs/sluice_spark"):
            shutil.copytree(ROOT / package, site / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "bin" / Path(sys.executable).name


@contextmanager
def _daemon(folder: Path, name: str, arguments: list[str]) -> Iterator[Path]:
    """The log of a process of Spark's that runs in `folder`."""
    command = [SPARK / "bin/spark-class", f"org.apache.spark.deploy.{name}", "--port", "0", "--webui-port", "0"]
    with _process(folder, [*map(str, command), *arguments]) as log:
        yield log


@contextmanager
def java_daemon(folder: Path, arguments: list[str]) -> Iterator[Path]:
    """The log of a JVM with these arguments that runs in `folder`."""
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    with _process(folder, [str(java), *small, *arguments]) as log:
        yield log


@contextmanager
def _process(folder: Path, command: list[str]) -> Iterator[Path]:
    """The log of a process that runs in `folder` and knows no other; it is killed at the end, by its number."""
    for there in ("home", "tmp", "conf"):
        (folder / there).mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "JAVA_HOME", "LANG")}
    environment = {
        **kept,
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "SPARK_LOCAL_DIRS": str(folder / "tmp"),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_HOME": str(SPARK),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC {QUICK}",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        yield log
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(encoding="utf-8", errors="replace")):
            return found[1]
        time.sleep(0.05)
    pytest.fail(f"Spark did not say {pattern!r} in {_SECONDS} s: {log.read_text(encoding='utf-8')[-2000:]}")
