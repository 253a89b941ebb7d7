"""A key of the object store that is replaced while the applier runs."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from sluice.store.opening import open_store
from tests.spark.changes import Change, Manifest
from tests.spark.model import SCHEMA, row
from tests.support.extent import slow
from tests.support.pipeline import QUICK_JAVA, wait_until
from tests.support.policies import GuardedS3, guarded_s3
from tools.local.sluice import Pipeline

KEYS = ("access_key_id", "secret_access_key")


def keys_of_the_lake(s3: GuardedS3) -> set[int]:
    try:
        lake = DeltaTable(f"{s3.lake_uri}/public/items", storage_options=s3.options["anybody"])
    except TableNotFoundError:
        return set()
    found = pa.table(QueryBuilder().register("lake", lake).execute("select id from lake").read_all())
    return set(found.column("id").to_pylist())


def children(pid: int) -> list[tuple[str, str]]:
    """Name and state of the processes that process `pid` started; the state is Z for one that has ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, fields = place.read_text().partition("(")[2].rpartition(")")
            state, parent = fields.split()[:2]
            if int(parent) == pid:
                found.append((name, state))
    return found


@slow
def test_an_applier_goes_on_by_itself_with_another_key_of_the_object_store(tmp_path: Path) -> None:
    with guarded_s3() as s3:
        manifest = Manifest(open_store(s3.spool_uri, prefix="test/", options=s3.options["anybody"]))
        manifest.table(SCHEMA)
        manifest.snapshot([row(1)], SCHEMA)
        before = s3.options["applier"]

        def hand_over(options: dict[str, str]) -> None:
            for name in KEYS:
                (tmp_path / "fresh").write_text(options[name])
                (tmp_path / "fresh").replace(tmp_path / name)

        common = {f"aws_{name}": value for name, value in before.items() if name not in (*KEYS, "allow_http")}
        pipeline = Pipeline(
            tmp_path / "pipeline",
            name="test",
            dsn="postgresql://",
            spool_uri=s3.spool_uri,
            lake_uri=s3.lake_uri,
            settings={
                "spool": {"options": {**common, "allow_http": "true"}},
                "apply": {"spark_master": "local[2]", "driver_memory": "1GiB", "conf": QUICK_JAVA},
            },
        )
        environment = {f"SLUICE_SPOOL__OPTIONS__AWS_{name.upper()}_FILE": str(tmp_path / name) for name in KEYS}
        hand_over(before)
        with pipeline.start("apply", environment=environment) as applier:
            wait_until(lambda: keys_of_the_lake(s3) == {1}, what="the first key works")
            fresh = s3.another_key("applier")
            hand_over(fresh)
            s3.withdraw(before, "applier")
            manifest.transaction([Change("i", row(2))], SCHEMA)
            wait_until(lambda: keys_of_the_lake(s3) == {1, 2}, what="the second key works")
            assert [one for one in children(applier.pid) if one[0] == "java" or one[1] == "Z"] == [("java", "S")]
        log = (pipeline.directory / "apply.log").read_text()
        assert log.count("the applier begins again") == 1
        assert not [name for options in (before, fresh) for name in KEYS if options[name] in log]
