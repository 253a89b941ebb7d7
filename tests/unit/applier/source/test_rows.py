"""What a stream shows of changes that came under another shape than its own."""

from pathlib import Path

from sluice.store.opening import open_store
from sluice_spark.source.rows import UNSENT, Part, typed
from sluice_spark.spool import StorePrefix
from tests.spark.changes import INT8, TEXT, Change, Manifest, column, table_schema

COLUMNS = column("id", 1, INT8, key=True), column("v", 2, TEXT)


def test_values_that_a_delete_did_not_send_are_named_though_the_table_sends_whole_rows_now(tmp_path: Path) -> None:
    of_key, whole = table_schema(*COLUMNS), table_schema(*COLUMNS, identity="f", version=2)
    manifest = Manifest(open_store(tmp_path.as_uri(), options={}))
    for then, old, unsent in ((of_key, {"id": 1}, ["v"]), (whole, {"id": 1, "v": None}, None)):
        segment = manifest.segment([Change("d", old=old, lsn=110)], then)
        part = Part(StorePrefix(tmp_path.as_uri(), "", ()), segment, then, whole, 1, 0)
        (row,) = next(typed(part)).to_pylist()
        assert (row["id"], row["v"], row[UNSENT]) == (1, None, unsent)
