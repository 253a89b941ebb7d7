"""A program: windows on executors that are processes of their own, some of which are killed at work.

`python -m tests.spark.cluster FOLDER` exits with 0 when the lake holds what it must.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from sluice_spark import session as sessions
from sluice_spark.options import DISTRIBUTED, ApplyOptions
from tests.spark import lake
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA
from tests.spark.windows import Windows

ROWS = 400
POINTS = ("apply.distributed.folded", "apply.distributed.marked")


def main(folder: Path) -> int:
    gates = {point: folder / point for point in POINTS}
    options = ApplyOptions(
        "shop",
        folder.as_uri(),
        folder.as_uri(),
        spark_master="local-cluster[2,1,1024]",
        driver_memory="1g",
        spark_conf={
            "spark.executorEnv.SLUICE_FAULTS": ",".join(f"{point}=hold:{gate}@1" for point, gate in gates.items()),
            "spark.executor.memory": "512m",
        },
    )
    spark = sessions.start(options)
    try:
        pipeline = Pipeline(spark, folder)
        pipeline.begin(SCHEMA, *({"id": key, "v": 0, "big": f"b{key}", "at": None} for key in range(ROWS)))
        applied = Windows(pipeline, way=DISTRIBUTED)
        applied.apply()
        changes = [Change("u", {"id": key, "v": 1}, unchanged=("big", "at")) for key in range(ROWS // 2)]
        new = [Change("i", {"id": ROWS + key, "v": 2, "big": None, "at": None}) for key in range(100)]
        pipeline.manifest.transaction([*changes, *new, Change("d", {}, old={"id": ROWS - 1})], SCHEMA)
        worker = threading.Thread(target=applied.apply)
        worker.start()
        # A worker's Python dies when it has folded a part, and a whole executor when it has marked files.
        _wait(worker, lambda: any(key.endswith(".arrow") for key in pipeline.store.list("apply/scratch/")))
        _kill(_descendants("pyspark.daemon", parent="pyspark.daemon"))
        gates[POINTS[0]].touch()
        _wait(worker, lambda: bool(list(pipeline.path().glob("*.bin"))))
        _kill(_descendants("CoarseGrainedExecutorBackend")[:1])
        gates[POINTS[1]].touch()
        worker.join()
        rows = {row["id"]: row for row in pipeline.rows()}
        assert len(rows) == len(pipeline.rows()) == ROWS + 99, "rows twice or missing"
        assert all(rows[key]["v"] == (1 if key < ROWS // 2 else 0) for key in range(ROWS - 1))
        assert all(rows[key]["big"] == f"b{key}" for key in range(ROWS - 1)), "kept values"
        assert lake.version(pipeline.path()) == 1, "more than one commit"
        assert list(pipeline.store.list("apply/scratch/")) == []
        assert applied.table is not None
        assert applied.table.way.name == DISTRIBUTED
    finally:
        spark.stop()
    return 0


def _wait(worker: threading.Thread, happened: Callable[[], bool]) -> None:
    while not happened():
        worker.join(0.02)
        assert worker.is_alive(), "the window ended before the kill"


def _kill(pids: list[int]) -> None:
    assert pids, "nothing to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _descendants(text: str, *, parent: str = "") -> list[int]:
    """Processes that this one started, at any distance, which have `text` in their command line, and whose parent has
    `parent` in its own.
    """
    found, level = [], {os.getpid()}
    processes = {int(path.name): path for path in Path("/proc").iterdir() if path.name.isdigit()}
    while level:
        children = {pid for pid, path in processes.items() if _parent(path) in level}
        found += [
            pid
            for pid in sorted(children)
            if text in _command(processes[pid]) and parent in _command(processes[_parent(processes[pid])])
        ]
        level = children
    return found


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


def _command(path: Path) -> str:
    try:
        return (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
