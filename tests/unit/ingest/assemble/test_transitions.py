"""Every state of the stream against every message, by a table written from PostgreSQL's chapter "Logical Streaming
Replication Protocol", which shares nothing with the one that the assembler reads.
"""

from collections.abc import Callable

import pytest

from sluice.contract.entries import Prepared
from sluice.errors import ProtocolViolation
from sluice.ingest.assemble.assembler import Assembler
from sluice.ingest.assemble.transitions import State
from sluice.protocol.frames import join
from tests.support import wire

# One line per message and one column per state: the state that follows, or - where it may not come.
# A transaction's messages come between its first and last one, without another's in between. A
# stream block ends with Stream Stop; how the streamed transaction goes on comes outside blocks.
# Relation and Type come before the first use of what they describe, keepalives at any time. A
# message outside transactions is sent as soon as it is decoded.
CHAPTER = """
message            between      transaction  prepared   stream
Begin              transaction  -            -          -
Commit             -            between      -          -
Begin Prepare      prepared     -            -          -
Prepare            -            -            between    -
Stream Start       stream       -            -          -
Stream Stop        -            -            -          between
Stream Commit      between      -            -          -
Stream Prepare     between      -            -          -
Stream Abort       between      -            -          -
Commit Prepared    between      -            -          -
Rollback Prepared  between      -            -          -
Insert             -            transaction  prepared   stream
Update             -            transaction  prepared   stream
Delete             -            transaction  prepared   stream
Truncate           -            transaction  prepared   stream
Origin             -            transaction  prepared   stream
Message in         -            transaction  prepared   stream
Message out        between      -            -          stream
Relation           between      transaction  prepared   stream
Type               between      transaction  prepared   stream
Keepalive          between      transaction  prepared   stream
"""
STATES = {
    "between": State.BETWEEN,
    "transaction": State.TRANSACTION,
    "prepared": State.PREPARED,
    "stream": State.STREAM,
}
COLUMNS = [("id", 23, -1, True)]
HEAD, *LINES = [line.rsplit(maxsplit=4) for line in CHAPTER.strip().splitlines()]
CELLS = [(state, line[0], following) for line in LINES for state, following in zip(HEAD[1:], line[1:], strict=True)]

# Before each message: relation 1 is known, stream 9 is open, "earlier" was prepared as transaction 5.
LEADING_TO: dict[str, list[bytes]] = {
    "between": [],
    "transaction": [wire.begin(100, 7)],
    "prepared": [wire.begin_prepare(100, 140, 7, "now")],
    "stream": [wire.stream_start(7, first=True)],
}
BEFORE = [wire.relation(1, "a", COLUMNS), wire.stream_start(9, first=True), wire.stream_stop()]
MESSAGES: dict[str, Callable[[int | None], bytes]] = {
    "Begin": lambda _: wire.begin(100, 7),
    "Commit": lambda _: wire.commit(100, 140),
    "Begin Prepare": lambda _: wire.begin_prepare(100, 140, 7, "now"),
    "Prepare": lambda _: wire.prepare(100, 140, 7, "now"),
    "Stream Start": lambda _: wire.stream_start(8, first=True),
    "Stream Stop": lambda _: wire.stream_stop(),
    "Stream Commit": lambda _: wire.stream_commit(9, 100, 140),
    "Stream Prepare": lambda _: wire.prepare(100, 140, 9, "streamed", streamed=True),
    "Stream Abort": lambda _: wire.stream_abort(9, 9),
    "Commit Prepared": lambda _: wire.commit_prepared(100, 140, 5, "earlier"),
    "Rollback Prepared": lambda _: wire.rollback_prepared(60, 140, 5, "earlier"),
    "Insert": lambda xid: wire.insert(1, ["1"], xid=xid),
    "Update": lambda xid: wire.update(1, ["1"], xid=xid),
    "Delete": lambda xid: wire.delete(1, ["1"], xid=xid),
    "Truncate": lambda xid: wire.truncate([1], xid=xid),
    "Origin": lambda _: wire.origin(5, "elsewhere"),
    "Message in": lambda xid: wire.message("p", b"x", lsn=90, transactional=True, xid=xid),
    "Message out": lambda xid: wire.message("p", b"x", lsn=90, transactional=False, xid=xid),
    "Relation": lambda xid: wire.relation(2, "b", COLUMNS, xid=xid),
    "Type": lambda xid: wire.type_name(60000, "mood", xid=xid),
    "Keepalive": lambda _: wire.keepalive(90),
}


def assembler_in(state: str) -> Assembler:
    earlier = Prepared(gid="earlier", xid=5, end_lsn=60, prepare_time_us=0, rows=1)
    assembler = Assembler(start_lsn=50, prepared=[earlier])
    assembler.feed(join([*BEFORE, *LEADING_TO[state]]))
    assert assembler.state is STATES[state]
    return assembler


@pytest.mark.parametrize(("state", "message", "following"), CELLS, ids=lambda part: part.replace(" ", "_"))
def test_a_message_is_taken_where_the_chapter_allows_it_and_refused_elsewhere(
    state: str, message: str, following: str
) -> None:
    frame = MESSAGES[message](7 if state == "stream" else None)
    assembler = assembler_in(state)
    if following == "-":
        with pytest.raises(ProtocolViolation, match=f"came {STATES[state]}"):
            assembler.feed(join([frame]))
    else:
        assembler.feed(join([frame]))
        assert assembler.state is STATES[following]


def test_the_chapter_names_every_message() -> None:
    tags = {MESSAGES[line[0]](None)[25:26] for line in LINES if line[0] != "Keepalive"}
    assert b"".join(sorted(tags)) == bytes(sorted(b"BCORYIUDTMbPKrSEcAp"))
