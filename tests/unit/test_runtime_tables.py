"""Shapes of rows whose transaction has not ended: nothing is recorded on their account, and the catalog is asked only for what is new."""

import uuid
from dataclasses import replace

from service.manifest.follow import load_state
from service.manifest.log import ManifestLog
from service.protocol.messages import RelationColumn
from service.runtime.tables import TableBook
from service.source.schemas import relation_sent_as
from service.store.memory import MemoryStore
from tests.support.manifests import opened, schema, table


def test_the_catalog_is_not_asked_about_a_shape_that_the_manifest_has() -> None:
    store = MemoryStore(uuid.uuid4().hex)
    log = ManifestLog.open(store, opened(), load_state(store))
    log.append(table("7", version=1))
    asked: list[int] = []
    book = TableBook(log, asked.append, (), wal_end=lambda: 0)
    known = relation_sent_as(schema("7"))
    assert book.provisional(known) == replace(schema("7"), version=0)
    assert asked == []
    wider = replace(known, columns=(*known.columns, RelationColumn("fresh", 20, -1, identity=False)))
    shape = book.provisional(wider)
    assert shape is not None
    assert [column.name for column in shape.columns] == ["c1", "fresh"]
    assert asked == [7]
    assert log.state.seq == 2
