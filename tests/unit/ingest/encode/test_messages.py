"""Logical messages: which are kept, and which are certain to have outlived their savepoint."""

import pytest

from sluice.ingest.assemble.assembler import Assembler
from sluice.ingest.assemble.assembly import Assembly, Published
from sluice.ingest.encode.messages import encode_messages, settled
from sluice.protocol.frames import join
from sluice.tables.messages import IN_DOUBT, prefix_filter
from tests.support import wire


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ((), {"audit", "audit.x", "Audit", "", "others\n"}),
        (("audit",), {"audit"}),
        (("audit*",), {"audit", "audit.x"}),
        (("[aA]udit", "?thers*"), {"audit", "Audit", "others\n"}),
        (("",), {""}),
    ],
)
def test_prefixes_are_chosen_by_whole_patterns(patterns: tuple[str, ...], kept: set[str]) -> None:
    wanted = prefix_filter(patterns)
    assert {prefix for prefix in ("audit", "audit.x", "Audit", "", "others\n") if wanted(prefix)} == kept


def feed(assembler: Assembler, *frames: bytes) -> Assembly:
    return assembler.feed(join(frames))


def test_of_messages_that_are_not_wanted_nothing_is_kept_but_their_position() -> None:
    assembler = Assembler(start_lsn=0, keeps_message=prefix_filter(["kept"]))
    outside, inside = (wire.message("other", b"x", lsn=50, transactional=whether) for whether in (False, True))
    assembly = feed(assembler, outside, wire.begin(100, 7), inside, wire.commit(100, 140))
    assert (assembly.messages, len(assembly.commits), assembly.through_lsn) == ([], 0, 140)
    kept = wire.message("kept", b"x", lsn=190, transactional=True)
    assembly = feed(assembler, wire.begin(200, 8), kept, wire.commit(200, 240))
    assert [run.message.prefix for run in assembly.messages] == ["kept"]
    assert list(assembly.commits.end_lsn) == [240]


def streamed(*blocks: list[bytes]) -> tuple[list[Assembly], Published]:
    """One streamed transaction 7 of these blocks; blocks of aborts stand between the stream's own."""
    assembler = Assembler(start_lsn=0)
    found = []
    for number, frames in enumerate(blocks):
        if any(frame[25:26] != b"A" for frame in frames):
            frames = [wire.stream_start(7, first=number == 0), *frames, wire.stream_stop()]
        found.append(feed(assembler, *frames))
    found.append(feed(assembler, wire.stream_commit(7, 300, 340)))
    (ending,) = found[-1].endings
    assert isinstance(ending, Published)
    return found, ending


def certainty(found: list[Assembly], ending: Published) -> dict[str, bool]:
    runs = [run for assembly in found for run in assembly.messages]
    batch = settled(encode_messages(runs), doubt_until=ending.doubt_until).batch
    return dict(zip(batch.column("prefix").to_pylist(), batch.column(IN_DOUBT).to_pylist(), strict=True))


def sent(prefix: str, lsn: int) -> bytes:
    return wire.message(prefix, b"", lsn=lsn, transactional=True, xid=7)


def test_messages_before_a_rolled_back_savepoint_are_in_doubt_and_later_ones_are_not() -> None:
    found, ending = streamed(
        [sent("before", 10), sent("maybe inside", 20)], [wire.stream_abort(7, 8)], [sent("after", 30)]
    )
    assert certainty(found, ending) == {"before": True, "maybe inside": True, "after": False}


def test_messages_of_a_stream_without_rolled_back_savepoints_are_certain() -> None:
    found, ending = streamed([sent("one", 10)], [sent("two", 20)])
    assert certainty(found, ending) == {"one": False, "two": False}


def test_messages_of_an_ordinary_transaction_are_certain_even_when_it_outlives_its_batch() -> None:
    assembler = Assembler(start_lsn=0)
    begun = feed(assembler, wire.begin(100, 7), wire.message("long", b"", lsn=90, transactional=True))
    feed(assembler, wire.commit(100, 140))
    (run,) = begun.messages
    assert (run.body is not None, run.in_doubt) == (True, False)
