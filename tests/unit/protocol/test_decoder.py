"""Control messages: each decodes to the value that the specification gives its bytes, and to nothing else."""

import pytest

from sluice.errors import DecodeError
from sluice.protocol import messages as m
from sluice.protocol.constants import POSTGRES_EPOCH_US
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import join
from tests.support import pgoutput_bytes as wire

LSN, END, TIME, XID = 0x1234_5678_9ABC, 0x1234_5678_9B00, 812_345_678_901_234, 4_000_000_001
UNIX = TIME + 946_684_800_000_000
COLUMNS = [(1, "id", 20, -1), (0, 'naïve "x"', 1700, 0x000C_0006)]
VERSION = m.RelationVersion(
    16384,
    "shop",
    "ordérs",
    "d",
    (m.RelationColumn("id", 20, -1, identity=True), m.RelationColumn('naïve "x"', 1700, 0x000C_0006, identity=False)),
)
MAX_LSN = 0x7FFF_FFFF_FFFF_FFFF


def decode(message: bytes, *, in_stream: bool = False) -> m.ControlMessage:
    before, after = wire.xlogdata(wire.stream_stop()), wire.keepalive(1)
    return decode_control(join([before, wire.xlogdata(message), after]), 1, in_stream=in_stream)


OUTSIDE_A_STREAM: list[tuple[bytes, m.ControlMessage]] = [
    (wire.begin(LSN, TIME, XID), m.Begin(LSN, UNIX, XID)),
    (wire.commit(LSN, END, TIME), m.Commit(LSN, END, UNIX)),
    (wire.origin(0xFFFF_FFFF_FFFF_FFFF, "elsewhere"), m.Origin(0xFFFF_FFFF_FFFF_FFFF, "elsewhere")),
    (wire.relation(16384, "shop", "ordérs", COLUMNS), m.Relation(VERSION, None)),
    (wire.relation(1, "", "t", [], identity=b"n"), m.Relation(m.RelationVersion(1, "pg_catalog", "t", "n", ()), None)),
    (wire.type_name(60000, "shop", "mood"), m.TypeName(60000, "shop", "mood", None)),
    (wire.type_name(60000, "", "mood"), m.TypeName(60000, "pg_catalog", "mood", None)),
    (
        wire.truncate([1, 0xFFFF_FFFF]),
        m.Truncate((1, 0xFFFF_FFFF), cascade=False, restart_identity=False, stream_xid=None),
    ),
    (wire.truncate([7], flags=1), m.Truncate((7,), cascade=True, restart_identity=False, stream_xid=None)),
    (wire.truncate([7], flags=2), m.Truncate((7,), cascade=False, restart_identity=True, stream_xid=None)),
    (wire.truncate([7], flags=3), m.Truncate((7,), cascade=True, restart_identity=True, stream_xid=None)),
    (wire.message(LSN, "pre", b"\0\xff\n", flags=1), m.LogicalMessage(True, LSN, "pre", b"\0\xff\n", None)),
    (wire.message(LSN, "", b""), m.LogicalMessage(False, LSN, "", b"", None)),
    (wire.stream_start(XID, first=1), m.StreamStart(XID, first=True)),
    (wire.stream_start(XID, first=0), m.StreamStart(XID, first=False)),
    (wire.stream_commit(XID, LSN, END, TIME), m.StreamCommit(XID, LSN, END, UNIX)),
    (wire.stream_abort(XID, XID + 1), m.StreamAbort(XID, XID + 1, None, None)),
    (wire.stream_abort(XID, XID, at=(LSN, TIME)), m.StreamAbort(XID, XID, LSN, UNIX)),
    (wire.stream_abort(XID, XID, at=(0, 0)), m.StreamAbort(XID, XID, 0, POSTGRES_EPOCH_US)),
    (wire.begin_prepare(LSN, END, TIME, XID, ""), m.BeginPrepare(LSN, END, UNIX, XID, "")),
    (wire.prepare(LSN, END, TIME, XID, "../g id"), m.Prepare(LSN, END, UNIX, XID, "../g id")),
    (wire.prepare(LSN, END, TIME, XID, "g" * 199, tag=b"K"), m.CommitPrepared(LSN, END, UNIX, XID, "g" * 199)),
    (
        wire.rollback_prepared(LSN, END, TIME, TIME + 5, XID, "g"),
        m.RollbackPrepared(LSN, END, UNIX, UNIX + 5, XID, "g"),
    ),
    (wire.prepare(LSN, END, TIME, XID, "é" * 199, tag=b"p"), m.StreamPrepare(LSN, END, UNIX, XID, "é" * 199)),
]
INSIDE_A_STREAM: list[tuple[bytes, m.ControlMessage]] = [
    (wire.relation(16384, "shop", "ordérs", COLUMNS, xid=9), m.Relation(VERSION, 9)),
    (wire.type_name(60000, "shop", "mood", xid=9), m.TypeName(60000, "shop", "mood", 9)),
    (wire.truncate([7], xid=9), m.Truncate((7,), cascade=False, restart_identity=False, stream_xid=9)),
    (wire.message(LSN, "pre", b"x", flags=1, xid=9), m.LogicalMessage(True, LSN, "pre", b"x", 9)),
    (wire.stream_stop(), m.StreamStop()),
    (wire.origin(0, "o"), m.Origin(0, "o")),
    (wire.stream_commit(XID, LSN, END, TIME), m.StreamCommit(XID, LSN, END, UNIX)),
    (wire.stream_abort(XID, XID), m.StreamAbort(XID, XID, None, None)),
]
ALL = [(*case, False) for case in OUTSIDE_A_STREAM] + [(*case, True) for case in INSIDE_A_STREAM]


@pytest.mark.parametrize(
    ("message", "value", "in_stream"),
    ALL,
    ids=lambda x: x.__class__.__name__ if not isinstance(x, bytes | bool) else "",
)
def test_a_message_decodes_to_what_its_bytes_say(message: bytes, value: m.ControlMessage, in_stream: bool) -> None:
    assert decode(message, in_stream=in_stream) == value


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("reply", [0, 1])
def test_a_keepalive_never_has_a_transaction_id(reply: int, in_stream: bool) -> None:
    table = join([wire.keepalive(END, TIME, reply=reply)])
    assert decode_control(table, 0, in_stream=in_stream) == m.Keepalive(END, UNIX, reply_requested=bool(reply))


@pytest.mark.parametrize(("message", "value", "in_stream"), ALL)
def test_every_proper_prefix_of_a_message_is_refused(message: bytes, value: m.ControlMessage, in_stream: bool) -> None:
    for length in range(1, len(message)):
        if isinstance(value, m.StreamAbort) and length == 9:
            continue  # the short form: the length is all that tells them apart
        with pytest.raises(DecodeError):
            decode(message[:length], in_stream=in_stream)


@pytest.mark.parametrize(("message", "value", "in_stream"), ALL)
def test_bytes_behind_a_message_are_refused(message: bytes, value: m.ControlMessage, in_stream: bool) -> None:
    with pytest.raises(DecodeError):
        decode(message + b"\0", in_stream=in_stream)


REFUSED: dict[str, bytes] = {
    "unknown tag": b"Z",
    "tag 0": b"\0",
    "a row message": wire.insert(1, [b"1"]),
    "commit flags": wire.commit(LSN, END, TIME, flags=1),
    "stream commit flags": wire.stream_commit(XID, LSN, END, TIME, flags=1),
    "prepare flags": wire.prepare(LSN, END, TIME, XID, "g", flags=1),
    "commit prepared flags": wire.prepare(LSN, END, TIME, XID, "g", flags=1, tag=b"K"),
    "stream prepare flags": wire.prepare(LSN, END, TIME, XID, "g", flags=1, tag=b"p"),
    "rollback prepared flags": wire.rollback_prepared(LSN, END, TIME, TIME, XID, "g", flags=1),
    "truncate flags": wire.truncate([1], flags=4),
    "message flags": wire.message(LSN, "p", b"", flags=2),
    "stream start flags": wire.stream_start(XID, first=2),
    "column flags": wire.relation(1, "s", "t", [(2, "a", 23, -1)]),
    "begin at LSN 0": wire.begin(0, TIME, XID),
    "commit at LSN 0": wire.commit(0, END, TIME),
    "commit with end LSN 0": wire.commit(LSN, 0, TIME),
    "stream commit with end LSN 0": wire.stream_commit(XID, LSN, 0, TIME),
    "prepare with end LSN 0": wire.prepare(LSN, 0, TIME, XID, "g"),
    "LSN max": wire.commit(LSN, 0xFFFF_FFFF_FFFF_FFFF, TIME),
    "LSN that no signed column holds": wire.begin(MAX_LSN + 1, TIME, XID),
    "time max": wire.begin(LSN, 2**63 - 1, XID),
    "transaction 0": wire.begin(LSN, TIME, 0),
    "stream of transaction 0": wire.stream_start(0),
    "abort of subtransaction 0": wire.stream_abort(XID, 0),
    "identity": wire.relation(1, "s", "t", [], identity=b"x"),
    "identity 0": wire.relation(1, "s", "t", [], identity=b"\0"),
    "duplicate columns": wire.relation(1, "s", "t", [(0, "a", 23, -1), (0, "a", 25, -1)]),
    "empty column name": wire.relation(1, "s", "t", [(0, "", 23, -1)]),
    "empty relation name": wire.relation(1, "s", "", []),
    "empty type name": wire.type_name(1, "s", ""),
    "1665 columns": wire.relation(1, "s", "t", [(0, f"c{n}", 23, -1) for n in range(1665)]),
    "65535 columns announced": wire.relation(1, "s", "t", [])[:-2] + b"\xff\xff",
    "name of 64 characters": wire.relation(1, "s", "t" * 64, []),
    "invalid UTF-8 in a name": wire.relation(1, "s", "t", []).replace(b"t\0", b"\xff\0"),
    "surrogate in a name": wire.type_name(1, "s", "x").replace(b"x", b"\xed\xa0\x80"),
    "no NUL": wire.type_name(1, "s", "x")[:-1],
    "gid of 200 characters": wire.prepare(LSN, END, TIME, XID, "g" * 200),
    "truncate of nothing": wire.truncate([]),
    "truncate count too high": b"T" + wire.i32(2) + b"\0" + wire.u32(1),
    "truncate count too low": b"T" + wire.i32(1) + b"\0" + wire.u32(1) * 2,
    "truncate count max": b"T" + wire.i32(2**31 - 1) + b"\0" + wire.u32(1),
    "truncate count -1": b"T" + wire.i32(-1) + b"\0" + wire.u32(1),
    "content longer than said": wire.message(LSN, "p", b"abc").replace(b"\0\0\0\x03abc", b"\0\0\0\x02abc"),
    "content shorter than said": wire.message(LSN, "p", b"abc").replace(b"\0\0\0\x03abc", b"\0\0\0\x04abc"),
    "content length max": wire.message(LSN, "p", b"abc").replace(b"\0\0\0\x03abc", b"\x7f\xff\xff\xffabc"),
    "content length -1": wire.message(LSN, "p", b"").replace(b"p\0\0\0\0\0", b"p\0\xff\xff\xff\xff"),
    "abort with half of its long form": wire.stream_abort(XID, XID) + wire.u64(LSN),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_message_that_the_specification_does_not_allow_is_refused(case: str) -> None:
    with pytest.raises(DecodeError, match="at LSN 1/10"):
        decode(REFUSED[case])


def test_streamed_messages_need_their_transaction_id() -> None:
    for message in (
        wire.relation(1, "s", "t", [], xid=0),
        wire.truncate([1], xid=0),
        wire.type_name(1, "s", "t", xid=0),
    ):
        with pytest.raises(DecodeError, match="no transaction id"):
            decode(message, in_stream=True)


@pytest.mark.parametrize("reply", [2, 255])
def test_a_keepalive_with_unknown_flags_or_another_length_is_refused(reply: int) -> None:
    for frame in (wire.keepalive(END, reply=reply), wire.keepalive(END) + b"\0", wire.keepalive(MAX_LSN + 1)):
        with pytest.raises(DecodeError, match="keepalive"):
            decode_control(join([frame]), 0, in_stream=False)


def test_the_widest_relation_and_the_longest_names_are_accepted() -> None:
    columns = [(0, f"{n:04}" + "ü" * 59, 23, -1) for n in range(1664)]
    value = decode(wire.relation(1, "s" * 63, "t" * 63, columns))
    assert isinstance(value, m.Relation)
    assert [column.name for column in value.version.columns] == [name for _, name, _, _ in columns]


def test_the_earliest_and_latest_storable_times_are_exact() -> None:
    assert decode(wire.begin(LSN, -(2**63), XID)) == m.Begin(LSN, -(2**63) + POSTGRES_EPOCH_US, XID)
    latest = 2**63 - 1 - POSTGRES_EPOCH_US
    assert decode(wire.begin(LSN, latest, XID)) == m.Begin(LSN, 2**63 - 1, XID)
    assert decode(wire.begin(MAX_LSN, TIME, XID)) == m.Begin(MAX_LSN, UNIX, XID)


def test_an_error_names_the_message_and_never_its_content() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(wire.message(LSN, "secret-prefix", b"secret-content") + b"secret-tail")
    assert "message 'M' at LSN 1/10" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(DecodeError) as caught:
        decode(wire.message(LSN, "p", b"x").replace(b"p\0", b"secret\xff\0"))
    assert caught.value.__cause__ is None
