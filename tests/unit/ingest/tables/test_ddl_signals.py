"""What DDL signals mean, and through where the catalog counts as examined while they come."""

import dataclasses
from collections.abc import Iterable

import pytest

from sluice.contract.entries import Commits, Prepared
from sluice.ingest.assemble.assembly import Assembly, Ending, MessageRun, PreparedBody, PreparedCommitted
from sluice.ingest.tables.ddl_signals import MOST_LEFT, DdlSignals, Signal, SignalReader
from sluice.protocol import frames
from sluice.protocol.messages import DDL_SIGNAL, LogicalMessage
from sluice.source.ddl_signal import Seen
from tests.support import source_facts

SEEN = Seen("1", "", frozenset({"9/1"}))


class Examined:
    """A process whose manifest was examined through `lsn`."""

    def __init__(self) -> None:
        self.lsn = 0
        self.signals = DdlSignals(examined=self.set, examined_lsn=lambda: self.lsn)

    def set(self, lsn: int) -> None:
        self.lsn = max(self.lsn, lsn)

    def decoded(self, through_lsn: int, signals: Iterable[Signal] = ()) -> None:
        self.signals.heard(signals)
        self.signals.decoded(through_lsn)

    def look(self, *, through_lsn: int) -> None:
        due = self.signals.due(lambda _: set())
        self.signals.looked(())
        self.set(self.signals.bounded(due, through_lsn))
        self.signals.judged(due, examined_lsn=self.lsn)


def begun(*, sent: bool) -> Examined:
    """A connection that began at 50, whose older transactions ended before 90."""
    it = Examined()
    it.signals.begin(50, sent=sent)
    it.signals.probed(SEEN, 60)
    it.signals.probed(dataclasses.replace(SEEN, open=frozenset()), 90)
    return it


def alone() -> Examined:
    """At 100, and a signal is relied upon."""
    it = begun(sent=True)
    it.decoded(100)
    it.look(through_lsn=100)
    assert it.signals.why_not == ""
    return it


def test_a_look_that_began_before_a_signal_does_not_answer_it() -> None:
    it = alone()
    due = it.signals.due(lambda _: set())
    it.decoded(300, [Signal(250, xid=7)])
    it.set(it.signals.bounded(due, 300))
    it.signals.judged(due, examined_lsn=it.lsn)
    assert (it.lsn, it.signals.waiting) == (249, True)


def test_what_a_connection_without_signals_has_decoded_is_not_examined_by_the_next_one() -> None:
    """Its rows come again, now with the signals among them."""
    it = begun(sent=False)
    it.decoded(1000)
    it.look(through_lsn=500)
    due = it.signals.due(lambda _: set())
    it.signals.begin(500, sent=True)
    it.decoded(520)
    assert it.signals.bounded(due, 500) == 520
    assert (it.lsn, it.signals.why_not) == (520, "")
    it.decoded(900, [Signal(700, xid=7)])
    assert it.lsn == 699


@pytest.mark.parametrize(
    "seen", [Seen("1", "disabled", frozenset()), Seen("2", "", frozenset())], ids=["disabled", "another one"]
)
def test_a_signal_that_changed_is_not_relied_upon(seen: Seen) -> None:
    it = alone()
    it.signals.probed(seen, 150)
    it.decoded(200, [Signal(180, xid=7)])
    it.look(through_lsn=190)
    assert (it.lsn, it.signals.why_not != "") == (190, True)


def test_another_connection_without_messages_says_nothing() -> None:
    it = alone()
    it.signals.begin(100, sent=False)
    it.decoded(200)
    assert it.lsn == 100
    it.signals.begin(150, sent=True)
    it.look(through_lsn=150)
    it.look(through_lsn=150)
    assert (it.lsn, it.signals.why_not) == (150, "")
    it.decoded(200, [Signal(180, xid=7)])
    assert it.lsn == 179


def said(content: str, *, body: int | None = None) -> MessageRun:
    message = LogicalMessage(True, 10, DDL_SIGNAL, content.encode(), None)
    return MessageRun(message, 0, 7, None if body else 20, None, body)


def batch(*runs: MessageRun, endings: tuple[Ending, ...] = ()) -> Assembly:
    return Assembly(frames.join([]), [], [], [], list(endings), Commits(), 0, signals=list(runs))


def test_a_prepared_transaction_says_on_a_later_connection_what_its_commands_left() -> None:
    prepared = DdlSignals(examined=lambda _: None, examined_lsn=lambda: 0).prepared
    fact = Prepared(gid="g", xid=9, end_lsn=30, prepare_time_us=0, rows=0)
    opened = said('{"left": [["label", 5, "x"]]}', body=1)
    assert SignalReader(prepared).take(batch(opened, endings=(PreparedBody(1, fact),))) == []
    ends = (PreparedCommitted("g", 50, 51, 0, 9),)
    assert SignalReader(prepared).take(batch(endings=ends)) == [Signal(51, 9, frozenset({("label", 5, "x")}))]


def test_more_than_can_be_kept_of_one_transaction_puts_every_table_in_doubt() -> None:
    many = [f'{{"left": [["label", {number}, "x"]]}}' for number in range(MOST_LEFT + 1)]
    (one,) = SignalReader().take(batch(said('{"left": [' + ",".join(one[10:-2] for one in many) + "]}")))
    assert one.left == frozenset({("anything",)})


def test_columns_are_known_to_be_written_by_commands_of_transactions_that_ended_before() -> None:
    it = alone()
    left = frozenset({("column", 7, 3, 25, -1), ("column", 8, 2, 25, -1), ("table", 7, "p", "d"), ("column", "x", 1)})
    it.signals.heard([Signal(150, 5, left), Signal(180, 6, frozenset({("column", 7, 4, 25, -1)}))])
    assert it.signals.columns_said(7, 149) == ()
    assert it.signals.columns_said(7, 150) == ((3, 150),)
    assert it.signals.columns_said(7, 200) == ((3, 150), (4, 180))
    it.signals.looked([source_facts.numbered(7)])
    assert (it.signals.columns_said(7, 200), it.signals.columns_said(8, 200)) == (((3, 150), (4, 180)), ())
    it.signals.probed(Seen("", "it is not installed"), 190)
    assert it.signals.columns_said(7, 200) is None
