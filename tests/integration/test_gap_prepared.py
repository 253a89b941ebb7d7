"""A slot that somebody advanced, while a transaction was prepared that it has passed."""

import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice.contract.table_state import State
from sluice.operate.new_slot import recreate
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since

TWO_PHASE: dict[str, Any] = {"two_phase": True}


@pytest.mark.parametrize("ending", ["COMMIT PREPARED 'g'", "ROLLBACK PREPARED 'g'"])
def test_ingest_goes_on_though_a_transaction_was_prepared_before_the_slots_new_position(
    pipeline: IngestPipeline, ending: str
) -> None:
    """Its PREPARE is not sent again, its COMMIT PREPARED would be: ingest stopped there at every start, and
    `sluice slot recreate` said that nothing was lost.
    """
    database = pipeline.database
    since(database, 15, "decoding at PREPARE")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    pipeline.run(**TWO_PHASE)
    with database.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (3, 3)")
        connection.execute("PREPARE TRANSACTION 'g'")
    pipeline.run(**TWO_PHASE)
    assert pipeline.state().prepared
    database.execute("INSERT INTO t VALUES (4, 4)")
    database.execute(f"SELECT pg_replication_slot_advance('{database.slot}', '{pipeline.wal_end()}')")
    going_on = threading.Thread(
        target=lambda: recreate(pipeline.options(**TWO_PHASE), pipeline.store, mirrored=lambda _: True)
    )
    with capture_logs() as said:
        going_on.start()
        deadline = time.monotonic() + 30
        while not said and time.monotonic() < deadline:
            time.sleep(0.05)
        database.execute(ending)
    no_process: list[int] = []
    waits = ("the new replication slot waits for older transactions to end", no_process, 1)
    assert [(line["event"], line["processes"], line["prepared"]) for line in said][:1] == [waits]
    going_on.join(60)
    assert not going_on.is_alive()
    database.execute("INSERT INTO t VALUES (5, 5)")
    pipeline.run(**TWO_PHASE)
    assert pipeline.table("public.t").state == State.GAP
    assert [row["id"] for row in pipeline.rows("public.t")][-1] == 5
