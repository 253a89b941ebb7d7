"""What is written can be read again, by this version or by none: no entry is ever half understood."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract.entries import (
    FATES,
    KINDS,
    BodyCommit,
    Changes,
    Commits,
    Entry,
    Opened,
    Prepared,
    PreparedEnd,
    PreparedPart,
    Progress,
    Repair,
    Segment,
    Snapshot,
    Table,
)
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.table_state import State
from sluice.contract.types import LakeType
from sluice.contract.xids import XidIntervals
from sluice.errors import FormatTooNew, ManifestCorrupt
from tests.support.extent import FULL
from tests.support.manifests import EXAMPLES, written

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=20)
reasons = st.none() | st.builds(Reason, st.sampled_from(ReasonCode), st.dictionaries(texts, texts, max_size=2))
key_values = st.one_of(st.integers(-(2**63), 2**63 - 1), texts)
streamed = st.none() | st.builds(BodyCommit, numbers, numbers, numbers)
ranges = st.dictionaries(texts, st.tuples(key_values, key_values), max_size=2)
ops, unchanged = st.dictionaries(st.sampled_from("iudt"), numbers), st.dictionaries(texts, numbers, max_size=2)
segments = st.builds(
    Segment, texts, texts, *[numbers] * 3, texts, numbers, numbers, ops, unchanged, numbers, ranges, streamed
)
types = st.builds(LakeType, texts, texts, texts)
columns = st.builds(
    ColumnSchema, texts, numbers, numbers, st.integers(-1, 2**31), texts, types, *[st.booleans()] * 2, st.none() | texts
)
schemas = st.builds(
    TableSchema, texts, numbers, texts, texts, st.sampled_from("dnfi"), st.lists(columns, max_size=3).map(tuple)
)
commits = st.integers(0, 4).flatmap(
    lambda count: st.builds(
        Commits,
        *[st.lists(numbers, min_size=count, max_size=count)] * 3,
        st.dictionaries(st.integers(0, max(count - 1, 0)), st.tuples(texts, numbers), max_size=count),
    )
)
some_segments = st.lists(segments, max_size=3).map(tuple)
xids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3).map(XidIntervals.of)


def _with_aborted(found: tuple[Segment, ...], aborted: XidIntervals) -> tuple[Segment, ...]:
    """All bodies of one transaction share one list; here they are made those of one."""
    return tuple(
        replace(segment, body=BodyCommit(340, 5, 7, aborted)) if segment.body else segment for segment in found
    )


def _one_commit_each(found: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """No two transactions end at the same LSN."""
    commits = {segment.body.end_lsn: segment.body for segment in found if segment.body}
    return tuple(replace(segment, body=commits[segment.body.end_lsn]) if segment.body else segment for segment in found)


several_segments = some_segments.map(_one_commit_each)
bodies = st.one_of(
    st.builds(Opened, texts, numbers, texts, numbers, texts, texts, st.booleans(), texts, numbers, numbers, texts),
    st.builds(Changes, several_segments | st.builds(_with_aborted, some_segments, xids), commits),
    st.just(Progress()),
    st.builds(
        Table, *[texts] * 3, st.sampled_from(State), numbers, reasons, numbers, st.none() | schemas, numbers, texts
    ),
    st.builds(Snapshot, texts, numbers, numbers, numbers, some_segments, st.booleans()),
    st.builds(Repair, texts, numbers, numbers, numbers, numbers, some_segments),
)
parts = st.builds(PreparedPart, schemas, segments.map(lambda found: replace(found, body=None)))
origins = st.none() | st.tuples(texts, numbers)
prepared = st.builds(Prepared, texts, *[numbers] * 4, st.lists(parts, max_size=2).map(tuple), xids, origins)
ends = st.builds(PreparedEnd, texts, numbers, st.sampled_from(FATES))
bodies |= st.builds(
    Changes, several_segments, commits, st.lists(prepared, max_size=2).map(tuple), st.lists(ends, max_size=2).map(tuple)
)
fields_of_the_future = st.dictionaries(
    st.text(min_size=1).map(lambda name: f"x_{name}"), st.none() | numbers | texts | st.lists(numbers), max_size=2
)
entries = st.builds(Entry, numbers, numbers, texts, numbers, numbers, texts, bodies, extra=fields_of_the_future)


@settings(max_examples=200 if FULL else 80)
@given(entries)
def test_an_entry_comes_back_equal_and_encodes_to_the_same_bytes(entry: Entry) -> None:
    encoded = entry.encode()
    assert Entry.decode(encoded) == entry
    assert Entry.decode(encoded).encode() == encoded
    assert encoded.isascii()


def test_two_different_commits_at_one_position_are_never_stored() -> None:
    changes = next(body for body in EXAMPLES if isinstance(body, Changes) and body.segments)
    one = replace(changes.segments[0], body=BodyCommit(340, 5, 7, XidIntervals.of([9])))
    other = replace(one, body=BodyCommit(340, 5, 8, XidIntervals.of([9])))
    with pytest.raises(ValueError, match="two different commits"):
        Entry(1, 1, "", 0, 340, "", replace(changes, segments=(one, other))).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_no_truncation_and_no_missing_field_is_half_understood(kind: str) -> None:
    body: Any = next(one for one in EXAMPLES if one.kind == kind)
    encoded = written(body).encode()
    for length in range(len(encoded)):
        with pytest.raises(ManifestCorrupt):
            Entry.decode(encoded[:length])
    whole = json.loads(encoded)
    for holder in ([], [body.kind]):
        for name in whole[body.kind] if holder else whole:
            damaged = json.loads(encoded)
            del (damaged[body.kind] if holder else damaged)[name]
            with pytest.raises(ManifestCorrupt):
                Entry.decode(json.dumps(damaged).encode())


@pytest.mark.parametrize("changed", [{"format_version": 2}, {"kind": "merged"}, {"kind": None}, {"kind": []}])
def test_an_entry_of_another_version_or_kind_stops_the_reader(changed: dict[str, Any]) -> None:
    value = {**json.loads(written(Progress()).encode()), **changed}
    with pytest.raises(FormatTooNew):
        Entry.decode(json.dumps(value).encode())


@settings(max_examples=200 if FULL else 80)
@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner))
)
def test_foreign_content_raises_nothing_but_our_errors(content: Any) -> None:
    with pytest.raises((ManifestCorrupt, FormatTooNew)):
        Entry.decode(content if isinstance(content, bytes) else json.dumps(content).encode())
