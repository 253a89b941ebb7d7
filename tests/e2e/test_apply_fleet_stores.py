"""One applier for many pipelines, of which some cannot reach their store: what it says of them, and how they go on."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.extent import slow
from tests.support.fleets import AppliedFleet, fresh_databases
from tests.support.s3proxy_faults import S3FaultProxy, error
from tools.local.postgres import PostgresServer
from tools.local.s3 import S3Server, running_s3

pytestmark = [pytest.mark.timeout(900), slow]
_BUCKET = "spools"


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with running_s3(buckets=(_BUCKET, "others")) as server:
        yield server


def _spool(bucket: str, s3: S3Server, endpoint: str, *, key: str = "old") -> dict[str, object]:
    options = s3.options() | {"endpoint": endpoint, "access_key_id": key}
    return {"uri": f"s3://{bucket}/spool", "options": options, "max_delay": "100ms"}


def test_keys_put_right_are_taken_and_a_silent_store_is_not_called_running(
    postgres: PostgresServer, s3: S3Server, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        databases = stack.enter_context(fresh_databases(postgres, "east", "north", "west"))
        refusing, silent = (stack.enter_context(S3FaultProxy(s3.port)) for _ in range(2))
        fleet = AppliedFleet(tmp_path, databases)
        stack.callback(fleet.end)
        fleet.configure("east")
        fleet.ingest("east")
        for name, bucket, proxy in (("north", _BUCKET, refusing), ("west", "others", silent)):
            fleet.configure(name, spool=_spool(bucket, s3, s3.endpoint))
            direct = (fleet.folder / f"{name}.yaml").rename(tmp_path / f"{name}.yaml")
            fleet.ingest(name, config=direct)  # which reaches the server itself
            fleet.configure(name, spool=_spool(bucket, s3, proxy.endpoint))
        refused = refusing.plan(error(403, "AccessDenied"))
        silent.hold()
        fleet.apply()
        fleet.until(lambda: fleet.is_equal("east"), "the pipeline that reaches its store is in the lake")
        fleet.until(lambda: fleet.states()["north"]["state"] == "failed", "the keys are refused")
        assert refused.is_set()
        assert fleet.states()["north"]["exit_code"] == 6
        assert fleet.states()["west"]["state"] != "running"
        fleet.until(lambda: "no usable answer" in (fleet.states()["west"]["error"] or ""), "the silence is named")
        _put_right(fleet, refusing, spool=_spool(_BUCKET, s3, refusing.endpoint, key="new"))
        fleet.until(lambda: fleet.is_equal("east", "north"), "the pipeline with new keys is in the lake")
        silent.release()
        fleet.until(lambda: fleet.is_equal("west"), "the pipeline whose store answers is in the lake")
        fleet.until(lambda: {one["state"] for one in fleet.states().values()} == {"running"}, "all run")
        silent.hold()
        fleet.until(lambda: bool(fleet.states()["west"]["error"]), "a store that falls silent later is named as well")
        assert fleet.stop() in (0, 75), fleet.tail()
        silent.release()


def _put_right(fleet: AppliedFleet, proxy: S3FaultProxy, *, spool: dict[str, object]) -> None:
    proxy.calm()
    fleet.configure("north", spool=spool)
    fleet.process.send_signal(signal.SIGHUP)
