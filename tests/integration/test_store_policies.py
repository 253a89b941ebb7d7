"""The example policies of deploy/object-store: enough for each process, scoped to the pipeline's
prefix, and nothing that could unmake the manifest.
"""

import uuid
from collections.abc import Iterator

import pytest

from sluice.contract import keys
from sluice.contract.verified import Verified
from sluice.errors import StoreRefused
from sluice.health.verified import Comparisons
from sluice.store import probe
from sluice.store.base import ObjectStore
from sluice.store.conformance import examine
from sluice.store.opening import open_store
from tests.support.forwarding import Forwarding
from tests.support.ingesting import IngestPipeline
from tests.support.policies import GuardedS3, allows, guarded_s3, policy
from tests.support.sources import Database


@pytest.fixture(scope="module")
def s3() -> Iterator[GuardedS3]:
    with guarded_s3() as server:
        yield server


def as_user(s3: GuardedS3, user: str, pipeline: str = "test") -> ObjectStore:
    return open_store(s3.spool_uri, prefix=f"{pipeline}/", options=s3.options[user])


class Deleting(Forwarding):
    """Writes down what is deleted, which the server does not look at key by key."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.deleted: list[str] = []

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        super().delete(key)


def test_ingest_runs_snapshots_and_cleans_up_with_its_policy_alone(
    s3: GuardedS3, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server's own check and write are two steps; that racing writers are distinguished is not the claim here.
    monkeypatch.setattr(probe, "RACERS", 1)
    seen = Deleting(as_user(s3, "ingest"))
    pipeline = IngestPipeline(database, seen)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    left = keys.segment(pipeline.table("public.t").table_id, 1, 9999)
    as_user(s3, "ingest").put(left, b"of a writer that died")
    as_user(s3, "anybody").create(keys.control_request("x"), b"{}")
    as_user(s3, "anybody").create(keys.verified(1), Verified().encode())
    rows = keys.repair_rows(keys.repair_token(1, uuid.uuid4().hex), 0)
    as_user(s3, "anybody").create(rows, b"of a repair that died")
    pipeline.run("INSERT INTO t VALUES (2)")
    with pipeline.running() as running:
        running.wait_until(lambda: {left, rows} <= set(seen.deleted))
    assert Comparisons.read(as_user(s3, "ingest")).unread == ""
    assert [row["id"] for row in pipeline.rows("public.t")] == [2]
    document = policy("ingest")
    assert seen.deleted
    assert [key for key in seen.deleted if not allows(document, "s3:DeleteObject", f"spool/test/{key}")] == []


MANIFEST, OTHER = "manifest/0000000000000001.json", "apply/log/1.json"


@pytest.mark.parametrize(
    ("user", "key"),
    [
        ("ingest", OTHER),
        ("ingest", "x"),
        ("applier", MANIFEST),
        ("applier", "data/7/1.parquet"),
        ("applier", "control/1.json"),
    ],
)
def test_neither_process_writes_what_belongs_to_the_other(s3: GuardedS3, user: str, key: str) -> None:
    with pytest.raises(StoreRefused, match="403"):
        as_user(s3, user).put(key, b"")


@pytest.mark.parametrize("user", ["ingest", "applier"])
def test_another_pipelines_prefix_is_neither_read_nor_written(s3: GuardedS3, user: str) -> None:
    as_user(s3, "anybody", "other").put(MANIFEST, b"")
    store = as_user(s3, user, "other")
    with pytest.raises(StoreRefused, match="403"):
        store.get(MANIFEST)
    with pytest.raises(StoreRefused, match="403"):
        store.put(MANIFEST, b"")


@pytest.mark.parametrize(("user", "may"), [("ingest", False), ("applier", True)])
def test_only_the_applier_may_delete_entries_and_lists_by_prefix_are_of_the_own_one(user: str, *, may: bool) -> None:
    """It deletes those that an archive has, and nobody writes one again. A request for an object has no prefix: S3 says
    that an object is missing, and not 403, to those whose right to list does not depend on one.
    """
    document = policy(user)
    assert allows(document, "s3:DeleteObject", f"spool/test/{MANIFEST}") == may
    assert allows(document, "s3:PutObject", f"spool/test/{MANIFEST}") != may
    lists = [statement for statement in document["Statement"] if statement["Action"] == "s3:ListBucket"]
    assert lists
    assert all(statement["Condition"]["StringLikeIfExists"]["s3:prefix"] for statement in lists)
    assert "*" not in {
        statement["Action"] for statement in document["Statement"] if isinstance(statement["Action"], str)
    }


def test_check_is_satisfied_with_ingests_policy_and_says_what_it_could_not_ask(s3: GuardedS3) -> None:
    seen = examine(as_user(s3, "ingest"), options=s3.options["ingest"])
    assert [(finding.code, finding.seen) for finding in seen.findings] == []
    assert ["lifecycle" in how or "encryption" in how for _, how in seen.not_examined] == [True, True]
