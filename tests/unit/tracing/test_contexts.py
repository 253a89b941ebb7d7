"""Which trace contexts the messages of an entry have: those of transactions that committed, and no more."""

import uuid

import pytest

from sluice.contract.entries import BodyCommit, Changes, Commits, Segment
from sluice.contract.xids import XidIntervals
from sluice.store.memory import MemoryStore
from sluice.tables.messages import SCHEMA
from sluice.tracing import contexts
from sluice.tracing.contexts import contexts_of
from sluice.tracing.spans import MOST_CONTEXTS, Published
from tests.spark.changes import Change, Manifest


def _said(number: int, **other: object) -> Change:
    content = f"00-{number:032x}-{number:016x}-01".encode()
    values = {"lsn": 1, "prefix": "traceparent", "transactional": True, "content": content, "in_doubt": False, **other}
    xid = int(values.pop("xid", 7))  # type: ignore[call-overload]
    return Change("i", values, lsn=1_000_000, xid=xid)


class _Spool:
    def __init__(self) -> None:
        self.store = MemoryStore(uuid.uuid4().hex, prefix="shop/")
        self.manifest = Manifest(self.store)

    def contexts(self, changes: list[Change], *, body: BodyCommit | None = None) -> list[int]:
        segment = self.manifest.segment(changes, SCHEMA, body=body)
        return [int(found.id.trace, 16) for found in contexts_of(self.store, _published(segment))]


def _published(segment: Segment) -> Published:
    changes = Changes((segment,), Commits((10,), (5,), (7,)))
    found = Published.of(changes, seq=1, sha256="0" * 64, from_lsn=1, through_lsn=10, durable_at=1.0)
    assert found is not None
    return found


def test_only_transactional_messages_of_the_prefix_that_are_certain_are_taken() -> None:
    others = [_said(2, prefix="audit"), _said(3, transactional=False), _said(4, in_doubt=True), _said(5, content=b"x")]
    assert _Spool().contexts([_said(1), *others, _said(6)]) == [1, 6]


def test_a_streamed_transaction_gives_its_commit_and_drops_what_was_rolled_back() -> None:
    aborted = XidIntervals.of([8])
    spool, body = _Spool(), BodyCommit(10, 4_000_000, 7, aborted)
    segment = spool.manifest.segment([_said(1), _said(2, xid=8)], SCHEMA, body=body)
    (found,) = contexts_of(spool.store, _published(segment))
    assert (int(found.id.trace, 16), found.commit_time_us) == (1, 4_000_000)


def test_so_many_contexts_are_taken_and_no_large_segment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [_said(number) for number in range(1, MOST_CONTEXTS + 10)]
    assert _Spool().contexts(messages) == list(range(1, MOST_CONTEXTS + 1))
    monkeypatch.setattr(contexts, "LARGEST_SEGMENT", 1)
    assert _Spool().contexts(messages) == []


def test_a_segment_that_is_gone_gives_spans_without_links() -> None:
    spool = _Spool()
    segment = spool.manifest.segment([_said(1)], SCHEMA)
    spool.store.delete(segment.key)
    assert contexts_of(spool.store, _published(segment)) == ()
