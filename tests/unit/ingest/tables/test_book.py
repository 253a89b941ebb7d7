"""Shapes of rows whose transaction has not ended: nothing is recorded on their account, and the
catalog is asked only for what is new.
"""

import uuid
from dataclasses import replace

from sluice.ingest.tables.book import NOT_YET, TableBook
from sluice.ingest.tables.schemas import relation_sent_as
from sluice.manifest.reader import load_state
from sluice.manifest.writer import ManifestLog
from sluice.protocol.messages import RelationColumn
from sluice.store.memory import MemoryStore
from tests.support.manifests import opened, schema, table


def test_rows_of_an_open_transaction_are_written_in_a_recorded_version_or_in_none() -> None:
    store = MemoryStore(uuid.uuid4().hex)
    log = ManifestLog.open(store, opened(), load_state(store))
    log.append(table("7", version=1))
    asked: list[int] = []
    book = TableBook(log, asked.append, (), wal_end=lambda: 0)
    known = relation_sent_as(schema("7"))
    assert book.written_in(known) == schema("7")
    assert asked == []
    wider = replace(known, columns=(*known.columns, RelationColumn("fresh", 20, -1, identity=False)))
    assert book.written_in(wider) == NOT_YET
    assert book.written_in(replace(known, name="renamed")) == NOT_YET
    assert asked == []
    assert log.state.seq == 2
