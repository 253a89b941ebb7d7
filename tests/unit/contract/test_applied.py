"""What the applier writes is read back whole or not at all."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt

texts = st.text(max_size=10)
numbers = st.integers(-1, 2**63 - 1)
reasons = st.none() | st.builds(Reason, st.sampled_from(ReasonCode), st.dictionaries(texts, texts, max_size=2))
states = st.sampled_from(State)
tables = st.builds(AppliedTable, *[texts] * 5, numbers, states, reasons, *[numbers] * 8, st.booleans())
times = st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
logs = st.builds(
    AppliedLog, numbers, texts, times, st.dictionaries(texts, tables, max_size=3), *[times | st.just("")] * 2
)
lsns, left_out = st.dictionaries(texts, numbers, max_size=3), st.dictionaries(texts, texts, max_size=3)
completes = st.builds(Complete, *[numbers] * 3, times, lsns, left_out)


@given(logs | completes)
def test_an_object_comes_back_equal(written: AppliedLog | Complete) -> None:
    assert type(written).decode(written.encode()) == written


@pytest.mark.parametrize("text", ["not a time", "2026-01-01T00:00:00", None, 7])
@pytest.mark.parametrize("name", ["written_at", "succeeded_at", "started_at"])
def test_a_time_that_cannot_be_read_is_corrupt(name: str, text: object) -> None:
    well = AppliedLog(1, "a", "2026-01-01T00:00:00+00:00", {}, "", "")
    with pytest.raises(ManifestCorrupt):
        AppliedLog.decode(replace(well, **{name: text}).encode())  # type: ignore[arg-type]
