"""Spool and lake on S3: the applier's own process, its own jars and settings, read back by
another engine.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from sluice.errors import UsageError
from sluice.manifest.newest_record import newest_log
from sluice.store.opening import open_store
from sluice_spark import jars
from sluice_spark.options import ApplyOptions
from tests.spark.changes import FLOAT8, INT4, Change, Manifest, column, table_schema
from tests.spark.model import SCHEMA, named, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support import commands
from tests.support.extent import FULL
from tests.support.policies import BUCKET, GuardedS3, guarded_s3
from tools.local.s3 import REGION, running_s3


def _rows(s3: GuardedS3, table: str) -> list[dict[str, object]]:
    lake = DeltaTable(f"{s3.lake_uri}/public/{table}", storage_options=s3.options["anybody"])
    rows = pa.table(QueryBuilder().register("lake", lake).execute("select * from lake").read_all()).to_pylist()
    plain = [{name: value for name, value in one.items() if not name.startswith("_sluice")} for one in rows]
    return sorted(plain, key=str)


@pytest.fixture
def s3() -> Iterator[GuardedS3]:
    with guarded_s3() as server:
        yield server


def test_merge_append_overwrite_and_large_windows_on_s3_with_the_appliers_policy_alone(s3: GuardedS3) -> None:
    try:
        jars.classpath(jars.default_directory(), s3=True)
    except UsageError as error:
        pytest.fail(f"{error}: {error.hint}")
    store = open_store(s3.spool_uri, prefix="test/", options=s3.options["anybody"])
    manifest = Manifest(store)
    whole_rows = table_schema(column("a", 1, INT4), column("f", 2, FLOAT8), identity="f", table="counted")
    counted, emptied, in_parts = (
        replace(whole_rows, table_id="16386"),
        named("emptied", "16387"),
        named("in_parts", "16388"),
    )
    for schema, rows in ((SCHEMA, [row(1), row(2)]), (counted, [{"a": 1, "f": 0.5}] * 3), (emptied, [row(1)])):
        manifest.table(schema)
        manifest.snapshot(list(rows), schema)
    if FULL:
        manifest.table(in_parts)
        for keys_read in (range(5), range(5, 9), ()):
            manifest.snapshot([row(key) for key in keys_read], in_parts, final=not keys_read)
    manifest.transaction([Change("i", row(key)) for key in range(3, 50)], SCHEMA)
    moved = Change("u", {"id": 100, "v": 1}, old={"id": 1}, unchanged=("big", "at"))
    updated = [Change("u", row(key, 9)) for key in range(3, 50)]
    manifest.transaction([moved, Change("d", old={"id": 2}), *updated], SCHEMA)
    manifest.transaction([Change("d", old={"a": 1, "f": 0.5})], counted)
    manifest.transaction([Change("t"), Change("i", row(7))], emptied)
    small: dict[str, Any] = {
        **SMALL_JVM,
        "once": True,
        "poll_seconds": 0.1,
        "max_window_bytes": 1,
        "max_memory_bytes": 2_000,
    }
    both: dict[str, Any] = dict.fromkeys(("spool_options", "lake_options"), s3.options["applier"])
    run = run_applier(ApplyOptions("test", s3.spool_uri, s3.lake_uri, **both, **small))
    assert run.code == 0, run.output
    assert _rows(s3, "items") == sorted([row(100, 1), *(row(key, 9) for key in range(3, 50))], key=str)
    assert _rows(s3, "counted") == [{"a": 1, "f": 0.5}] * 2
    assert _rows(s3, "emptied") == [row(7)]
    if FULL:
        assert _rows(s3, "in_parts") == [row(key) for key in range(9)]
    log = newest_log(store).read()
    assert log is not None
    assert {table.state for table in log.tables.values()} == {"live"}
    assert list(store.list("apply/scratch/")) == []


def test_whatever_the_applier_writes_is_encrypted_as_the_options_of_the_store_say(s3: GuardedS3) -> None:
    """By Spark, which has its own client, and by the process itself."""
    store = open_store(s3.spool_uri, prefix="test/", options=s3.options["anybody"])
    manifest = Manifest(store)
    manifest.table(SCHEMA)
    manifest.snapshot([row(1), row(2)], SCHEMA)
    manifest.transaction([Change("u", row(2, 9))], SCHEMA)
    key = "arn:aws:kms:us-east-1:123456789012:key/of-the-lake"
    encrypted = {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": key}
    options = ApplyOptions(
        "test",
        s3.spool_uri,
        s3.lake_uri,
        spool_options=s3.options["applier"],
        lake_options={**s3.options["applier"], **encrypted},
        once=True,
        poll_seconds=0.1,
        **SMALL_JVM,
    )
    run = run_applier(options)
    assert run.code == 0, run.output
    assert _rows(s3, "items") == [row(1), row(2, 9)]
    keys_of = {name: found.get("SSEKMSKeyId", "") for name, found in s3.objects("lake/").items()}
    assert any(name.endswith(".parquet") for name in keys_of)
    assert {name: found for name, found in keys_of.items() if found != key} == {}


WRITES = """
import sys
from sluice_spark import session
from sluice_spark.options import ApplyOptions
spark = session.start(ApplyOptions.from_json(sys.argv[1]))
spark.range(3).write.parquet("s3a://example/lake/rows")
print(spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.buffer.dir"))
"""


@dataclass(frozen=True)
class Written:
    """What a session wrote that has the identity of a pod, and where it kept the parts until then."""

    done: commands.Done
    files: list[str]
    buffers: str
    scratch: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """As EKS does it: a file with a token, a role, and where both are exchanged. There is no key anywhere."""
    folder = tmp_path_factory.mktemp("pod")
    token, scratch = folder / "token", folder / "scratch"
    token.write_text("signed-by-the-cluster")
    with running_s3(buckets=(BUCKET,)) as server:
        pod = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/sluice-applier",
            "AWS_ROLE_SESSION_NAME": "applier",
            "AWS_ENDPOINT_URL_STS": server.endpoint,
            "AWS_REGION": REGION,
            # The identity of the machine would do as well, where there is one.
            "AWS_EC2_METADATA_DISABLED": "true",
            "SPARK_LOCAL_DIRS": str(scratch),
        }
        without_key = {name: value for name, value in server.options().items() if "access_key" not in name}
        options = ApplyOptions("test", folder.as_uri(), f"s3://{BUCKET}/lake", lake_options=without_key, **SMALL_JVM)
        given = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = commands.ended(sys.executable, "-c", WRITES, options.to_json(), env={**given, **pod})
        lake = open_store(f"s3://{BUCKET}/lake", options=server.options())
        yield Written(done, list(lake.list("rows/")), done.stdout.rpartition("\n")[0].rpartition("\n")[2], scratch)


def test_spark_uses_the_identity_that_kubernetes_gives_a_pod_as_a_token(written: Written) -> None:
    assert written.done.returncode == 0, written.done.stderr
    assert [key for key in written.files if key.endswith(".parquet")]


def test_parts_of_files_wait_for_their_upload_where_spark_has_its_scratch_space(written: Written) -> None:
    assert written.buffers == f"{written.scratch}/s3a"
