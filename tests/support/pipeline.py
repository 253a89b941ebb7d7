"""A whole pipeline for one test: real commands as processes, the acknowledgement oracle on the
wire, and the manifest read back.

The oracle reads the spool's files by itself and shares no code with the log that writes them.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.contract import keys
from sluice.contract.applied import Complete
from tests.support.pgproxy import Status
from tests.support.sources import Database
from tools.local.jvm import QUICK
from tools.local.sluice import Pipeline, SluiceProcess

QUICK_JAVA = {"spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {QUICK}"}
"""`apply.conf` for a Java that lives for seconds or minutes."""
_LOOK_SECONDS = 0.02


class AckOracle:
    """Objects to a status message that acknowledges more than the spool holds at that moment, or
    that goes backwards. Give it to a PgProxy.

    `spool` is the pipeline's folder, or what gives the object of a key below it, None while there
    is none.
    """

    def __init__(self, spool: Path | Callable[[str], bytes | None]) -> None:
        self._read = _file_below(spool) if isinstance(spool, Path) else spool
        self._seq = 0
        self._durable = 0
        self._flushed = 0

    def __call__(self, status: Status) -> None:
        while (entry := self._read(f"manifest/{self._seq + 1:016d}.json")) is not None:
            self._durable = json.loads(entry)["through_lsn"]
            self._seq += 1
        assert status.flush <= self._durable, (
            f"acknowledged {status.flush}, but manifest entry {self._seq} holds through {self._durable}"
        )
        assert status.apply <= status.flush <= status.write, "the three positions of a status message are out of order"
        assert status.flush in (0, max(status.flush, self._flushed)), (
            f"acknowledged {status.flush} after {self._flushed}"
        )
        self._flushed = max(self._flushed, status.flush)


def _file_below(folder: Path) -> Callable[[str], bytes | None]:
    def read(key: str) -> bytes | None:
        try:
            return (folder / key).read_bytes()
        except (
            FileNotFoundError,
            NotADirectoryError,
        ):  # the second while a test has put a file in the place of the folder
            return None

    return read


def new_pipeline(database: Database, directory: Path, *, name: str = "t", dsn: str = "", **sections: Any) -> Pipeline:
    """A pipeline of all tables of `public` that has not run yet. `sections` are merged over the settings."""
    source = {"slot": database.slot, "publication": database.publication, "tables": ["public.*"]}
    source |= sections.pop("source", {})
    places = {f"{one}_uri": sections.get(one, {}).get("uri", "") for one in ("spool", "lake")}
    return Pipeline(directory, name=name, dsn=dsn or database.dsn, settings={"source": source, **sections}, **places)


def must(pipeline: Pipeline, *arguments: str, **options: Any) -> str:
    """`sluice <arguments>`, which has to succeed; what it answers."""
    done = pipeline.run(*arguments, **options)
    assert done.returncode == 0, f"sluice {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def complete_through(pipeline: Pipeline) -> int:
    """The LSN of the applier's newest statement, 0 before the first."""
    newest = max((pipeline.own_spool / keys.APPLY_COMPLETE).glob("*.json"), default=None)
    return Complete.decode(newest.read_bytes()).lsn if newest else 0


def wait_until(
    claim: Callable[[], bool], *, what: str, processes: tuple[SluiceProcess, ...] = (), timeout: float = 180.0
) -> None:
    """Returns when `claim` holds. Fails when it does not in time, or when one of `processes` ends meanwhile."""
    deadline = time.monotonic() + timeout
    while not claim():
        for process in processes:
            assert process.status is None, f"ended with status {process.status} before {what}:\n{process.log_tail(40)}"
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what}: not within {timeout:.0f} s\n" + "\n".join(process.log_tail(40) for process in processes)
            )
        time.sleep(_LOOK_SECONDS)


def wait_complete(pipeline: Pipeline, lsn: int, *, processes: tuple[SluiceProcess, ...] = ()) -> None:
    """Returns when the applier has stated that all tables are complete beyond `lsn`."""
    wait_until(lambda: complete_through(pipeline) > lsn, what="the lake is complete", processes=processes)


def commits(pipeline: Pipeline) -> Counter[int]:
    """How often each commit end LSN is in the manifest."""
    found: Counter[int] = Counter()
    for path in sorted((pipeline.own_spool / keys.MANIFEST).glob("*.json")):
        found.update(json.loads(path.read_bytes()).get("changes", {}).get("commits", {}).get("end_lsn", []))
    return found
