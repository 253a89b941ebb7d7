"""What builds of a snapshot leave is removed, and no file that the lake table may have."""

from collections.abc import Callable
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sluice.errors import WriterFenced
from sluice.store.memory import MemoryStore
from sluice_spark.lake.build import PREFIX, BuildTable
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.table import LakeTable

NO_SESSION = cast("SparkSession", None)
"""Files are listed and removed without one."""
OWN, EARLIER, FORGOTTEN = (f"{PREFIX}{name}" for name in ("own", "earlier", "forgotten"))
"""The log of an earlier build may lie beside files that the lake table has: a crash right behind the exchange."""
LOG, FILE = "_delta_log/00000000000000000000.json", "part-0.parquet"
FILES = {f"{folder}{file}" for folder in ("", f"{OWN}/", f"{EARLIER}/") for file in (LOG, FILE)} | {
    f"{FORGOTTEN}/{FILE}"
}


def _build(store: MemoryStore, before_commit: Callable[[], None] = lambda: None) -> BuildTable:
    for path in FILES:
        store.put(f"items/{path}", b"x")
    table = LakeTable(NO_SESSION, f"memory://lake/items/{OWN}", app_id="own", before_commit=before_commit)
    return BuildTable(table, TableFolder(store, "items/"), OWN, 0.0, {}, before_commit)


def _removed(build: BuildTable) -> set[str]:
    return FILES - set(build.folder.paths())


def test_a_build_that_begins_removes_logs_of_earlier_ones_and_no_file_of_a_lake_table() -> None:
    build = _build(MemoryStore("builds of a lake table"))
    build.clear(is_table=True)
    assert _removed(build) == {f"{EARLIER}/{LOG}"}


def test_files_that_no_vacuum_will_see_go_with_the_log_where_there_is_no_lake_table() -> None:
    build = _build(MemoryStore("builds without a lake table"))
    build.clear(is_table=False)
    assert _removed(build) == {f"{EARLIER}/{LOG}", f"{EARLIER}/{FILE}"}


def test_a_build_that_has_moved_loses_its_log_and_nothing_else() -> None:
    build = _build(MemoryStore("a build that has moved"))
    build.forget()
    assert _removed(build) == {f"{OWN}/{LOG}"}


def test_a_process_that_was_replaced_removes_nothing_of_builds() -> None:
    def fenced() -> None:
        raise WriterFenced("another applier has the lease", hint="none")

    build = _build(MemoryStore("builds of another process"), fenced)
    for remove in (build.forget, lambda: build.clear(is_table=False)):
        with pytest.raises(WriterFenced):
            remove()
    assert not _removed(build)
