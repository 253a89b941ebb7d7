"""Streams that servers may send (test_golden has some that they sent) decode column by column to what the reference
decoder reads message by message.
"""

import string

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from sluice.protocol.frames import join
from tests.support import pgoutput_bytes as wire
from tests.support.recordings import decoded
from tests.support.reference_decoder import readable

OIDS = (16384, 16385, 2**32 - 1)
XIDS = st.integers(1, 2**32 - 1)
LSNS = st.integers(1, 2**63 - 1)
TIMES = st.integers(-(2**60), 2**60)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
FIELDS: st.SearchStrategy[wire.Field] = st.one_of(
    st.none(),
    st.just(wire.UNCHANGED),
    st.text(string.printable, max_size=20).map(str.encode),
    st.binary(max_size=20).map(wire.Binary),
)


@st.composite
def relations(draw: st.DrawFn, widths: dict[int, int], xid: int | None) -> bytes:
    oid = draw(st.sampled_from(OIDS))
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    columns = [
        (draw(st.integers(0, 1)), name, draw(st.integers(1, 2**32 - 1)), draw(st.integers(-1, 2**31 - 1)))
        for name in names
    ]
    widths[oid] = len(columns)
    schema, name, identity = draw(NAMES | st.just("")), draw(NAMES), draw(st.sampled_from([b"d", b"n", b"f", b"i"]))
    return wire.relation(oid, schema, name, columns, identity=identity, xid=xid)


@st.composite
def rows(draw: st.DrawFn, widths: dict[int, int], xid: int | None) -> bytes:
    oid = draw(st.sampled_from(sorted(widths)))
    new, old = ([draw(FIELDS) for _ in range(widths[oid])] for _ in range(2))
    marker = draw(st.sampled_from([b"K", b"O"]))
    match draw(st.sampled_from("IUuD")):
        case "I":
            return wire.insert(oid, new, xid=xid)
        case "U":
            return wire.update(oid, new, old=old, marker=marker, xid=xid)
        case "u":
            return wire.update(oid, new, xid=xid)
        case _:
            return wire.delete(oid, old, marker=marker, xid=xid)


@st.composite
def changes(draw: st.DrawFn, widths: dict[int, int], *, xid: int | None) -> list[bytes]:
    """What may stand between B and C, or S and E."""
    found = []
    for _ in range(draw(st.integers(0, 6))):
        match draw(st.sampled_from("RIIIYTMk")):
            case "R":
                found.append(draw(relations(widths, xid)))
            case "I" if widths:
                found.append(draw(rows(widths, xid)))
            case "Y":
                found.append(wire.type_name(draw(st.integers(1, 2**32 - 1)), draw(NAMES), draw(NAMES), xid=xid))
            case "T":
                oids = draw(st.lists(st.sampled_from(OIDS), min_size=1, max_size=3))
                found.append(wire.truncate(oids, flags=draw(st.integers(0, 3)), xid=xid))
            case "M":
                flags, content = draw(st.integers(0, 1)), draw(st.binary(max_size=9))
                found.append(wire.message(draw(LSNS), draw(NAMES), content, flags=flags, xid=xid))
    return found


BLOCKS = ["ordinary", "streamed", "prepared", "commit", "abort", "stream_prepare", "commit_prepared", "rollback"]


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Blocks in any order; a relation described in one is known in all later ones."""
    widths: dict[int, int] = {}
    found: list[bytes] = []
    for _ in range(draw(st.integers(1, 6))):
        lsn, time, xid, gid = draw(LSNS), draw(TIMES), draw(XIDS), draw(NAMES | st.just(""))
        match draw(st.sampled_from(BLOCKS)):
            case "ordinary":
                found += [wire.begin(lsn, time, xid), *draw(changes(widths, xid=None)), wire.commit(lsn, lsn, time)]
            case "streamed":
                start = wire.stream_start(xid, first=draw(st.integers(0, 1)))
                found += [start, *draw(changes(widths, xid=draw(XIDS))), wire.stream_stop()]
            case "prepared":
                begin, end = wire.begin_prepare(lsn, lsn, time, xid, gid), wire.prepare(lsn, lsn, time, xid, gid)
                found += [begin, *draw(changes(widths, xid=None)), end]
            case "commit":
                found.append(wire.stream_commit(xid, lsn, lsn, time))
            case "abort":
                found.append(wire.stream_abort(xid, draw(XIDS), at=draw(st.none() | st.tuples(LSNS, TIMES))))
            case "stream_prepare":
                found.append(wire.prepare(lsn, lsn, time, xid, gid, tag=b"p"))
            case "commit_prepared":
                found.append(wire.prepare(lsn, lsn, time, xid, gid, tag=b"K"))
            case _:
                found.append(wire.rollback_prepared(lsn, lsn, time, time, xid, gid))
    return [wire.xlogdata(message) for message in found]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams())
def test_a_made_up_stream_decodes_to_what_the_reference_reads(frames: list[bytes]) -> None:
    expected = list(readable(frames))
    event(f"rows: {sum(found['message'] in ('I', 'U', 'D') for found in expected) > 0}")
    assert decoded(join(frames)) == expected
