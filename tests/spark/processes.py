"""The applier as it runs in production: a process of its own, options in, exit code and log lines
out.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice_spark.options import ApplyOptions
from tools.local.jvm import QUICK

SMALL_JVM: dict[str, Any] = {
    "spark_master": "local[2]",
    "driver_memory": "1g",
    "spark_conf": {"spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {QUICK}"},
}
"""Options of a process that lives for seconds: the JVM's second compiler would cost more than it
gives back.
"""


@dataclass(frozen=True)
class Run:
    """`output` is everything written to standard output and error, `commands` the command lines of
    the process and of those it started.
    """

    code: int
    output: str
    commands: frozenset[str]


def run_applier(options: ApplyOptions) -> Run:
    """Runs until the options' end."""
    environment = {**os.environ, "SLUICE_APPLY_OPTIONS": options.to_json()}
    commands: set[str] = set()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice_spark"], env=environment, stdout=output, stderr=output
        )
        deadline = time.monotonic() + 300
        while process.poll() is None:
            commands |= set(_command_lines(process.pid))
            if time.monotonic() > deadline:
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        output.seek(0)
        return Run(process.returncode, output.read().decode(), frozenset(commands))


def _command_lines(pid: int) -> Iterator[str]:
    try:
        yield Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _command_lines(int(child))
