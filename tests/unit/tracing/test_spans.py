"""The spans of an entry: which trace they are in, what they say, and what they never say."""

import pytest

from sluice.contract.entries import Changes, Commits, Segment
from sluice.tracing.spans import Context, Published, SpanId, context_of, when_stored, when_visible

SHA = "0123456789abcdef" * 4
TRACE, SPAN = "a" * 32, "b" * 16


def _published() -> Published:
    segments = tuple(Segment(f"data/{table}", table, 1, 3, 100, "", 10, 20, {"i": 3}) for table in ("16384", "0"))
    changes = Changes(segments, Commits((10, 20), (2_000_000, 1_000_000), (7, 8)))
    found = Published.of(changes, seq=5, sha256=SHA, from_lsn=1, through_lsn=20, durable_at=4.0, received_at=3.0)
    assert found is not None
    return found


OF_NONE = (f"00-{TRACE}-{SPAN}", f"01-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01")
OTHERS = (f"00-{'A' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", *map(str.encode, (*OF_NONE, *OTHERS))])
def test_content_that_is_no_trace_context_says_nothing(content: bytes) -> None:
    assert context_of(content) is None


def test_a_trace_that_is_not_sampled_is_left_alone_and_a_sampled_one_is_taken() -> None:
    assert context_of(f"00-{TRACE}-{SPAN}-00".encode()) is None
    assert context_of(f"00-{TRACE}-{SPAN}-03\n".encode()) == SpanId(TRACE, SPAN)


def test_both_processes_write_into_one_trace_in_the_order_of_the_stages() -> None:
    entry = _published()
    received, durable = when_stored(entry, (), "shop")
    (visible,) = when_visible(entry, (), "shop", visible_at=6.0, left_out=1)
    assert {span.id.trace for span in (received, durable, visible)} == {SHA[:32]}
    assert (received.parent, durable.parent, visible.parent) == (None, received.id, durable.id)
    assert (received.start_ns, received.end_ns) == (1_000_000_000, 3_000_000_000)
    assert (durable.start_ns, durable.end_ns) == (3_000_000_000, 4_000_000_000)
    assert (visible.start_ns, visible.end_ns) == (4_000_000_000, 6_000_000_000)
    assert visible.attributes["sluice.entry.tables_left_out"] == 1
    assert received.attributes["sluice.entry.transactions"] == 2
    again = when_stored(entry, (), "shop")
    assert [span.id for span in again] == [received.id, durable.id]


def test_a_transaction_with_a_context_has_spans_in_its_own_trace_and_links_both_ways() -> None:
    entry, context = _published(), Context(SpanId(TRACE, SPAN), 1_500_000)
    received, durable, beside = when_stored(entry, [context], "shop")
    visible, beside_too = when_visible(entry, [context], "shop", visible_at=6.0, left_out=0)
    for span, of in ((beside, durable), (beside_too, visible)):
        assert (span.id.trace, span.parent, span.links) == (TRACE, context.id, (of.id,))
        assert (span.start_ns, span.end_ns) == (1_500_000_000, of.end_ns)
        assert of.links == (context.id,)
    assert beside.id != beside_too.id
    assert received.links == (context.id,)


def test_no_span_ends_before_it_begins_where_clocks_differ() -> None:
    entry = _published()
    (visible,) = when_visible(entry, (), "shop", visible_at=3.5, left_out=0)
    assert visible.start_ns == visible.end_ns == 3_500_000_000


def test_an_entry_without_a_transaction_has_no_spans() -> None:
    assert Published.of(Changes((), Commits()), seq=1, sha256=SHA, from_lsn=1, through_lsn=1, durable_at=1.0) is None
