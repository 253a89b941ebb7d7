"""What a comparison makes of ranges that differ."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluice.contract.row_form import LakeAnswer, LakeQuestion, Row, Sums
from sluice.contract.verified import DIFFERENT
from sluice.errors import VerificationFailed
from sluice.operate.compare import comparing
from sluice.operate.compare.comparing import Comparing, Comparison
from sluice.operate.compare.repairing import keys_wanted
from sluice.operate.compare.source_side import Load
from sluice.store.memory import MemoryStore
from tests.support.manifests import open_log, put, snapshot, table

NOBODY: Any = None
RANGES = 8


class Source:
    """A table with ten rows in each range, of which the lake has none. `asked` counts the rows that were listed."""

    def __init__(self) -> None:
        self.asked = 0

    def sums(self) -> Sums:
        return dict.fromkeys(range(RANGES), (10, 1))

    def rows(self, ranges: Sequence[int]) -> list[Row]:
        self.asked += 10 * len(ranges)
        return [Row(100 * number + row, 1, (str(100 * number + row),)) for number in ranges for row in range(10)]


def compared(source: Source) -> Comparison:
    def ask(_: LakeQuestion) -> Callable[[], LakeAnswer]:
        return LakeAnswer

    log = open_log(MemoryStore(uuid.uuid4().hex), through_lsn=10)
    put(log, table(), through_lsn=10)
    put(log, snapshot(), through_lsn=10)
    state = log.state.tables["7"]
    question = LakeQuestion("7", 1, 1, 10, 1, 6, False, 0.0, ())
    found: Any = source
    return Comparing(NOBODY, ask, load=Load(), wait_seconds=0.0)._compared(
        state, state.schemas[1], found, question, 0.0
    )


@pytest.mark.parametrize(("most", "listed"), [(1000, 80), (40, 40), (41, 60)])
def test_rows_that_differ_are_listed_as_far_as_memory_allows_and_the_rest_is_said(
    most: int, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "ROWS_LISTED", 20)
    monkeypatch.setattr(comparing, "MOST_LISTED", most)
    source = Source()
    verdict = compared(source)
    assert (verdict.outcome, verdict.rows) == (DIFFERENT, 80)
    assert (source.asked, len(verdict.difference), verdict.all_listed) == (listed, listed, listed == 80)
    if verdict.all_listed:
        assert len(keys_wanted(verdict, 1)) == listed
    else:
        with pytest.raises(VerificationFailed, match=r"more than .* rows of public\.t7 differ"):
            keys_wanted(verdict, 1)
