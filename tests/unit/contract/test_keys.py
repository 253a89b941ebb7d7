"""Any identifier gives one key, two identifiers give two, and no key leaves its prefix."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract import keys
from sluice.errors import ManifestCorrupt
from sluice.store.base import checked_key

identifiers = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=15)
hostile = st.sampled_from([*"./~Aa\\\x01é *", "..", "~2f", "%2F", "a/b", "e\u0301", "日本", "con", "_delta_log"])
names = identifiers | hostile


def _reversed(part: str) -> str:
    return re.sub(rb"~([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), part.encode()).decode()


@given(names)
def test_a_path_part_is_safe_everywhere_and_can_be_reversed(name: str) -> None:
    part = keys.path_part(name)
    assert re.fullmatch(r"[A-Za-z0-9_~-]+", part)
    assert _reversed(part) == name
    assert part != "_delta_log", "other readers look for the log of a table behind that name"


@given(names, names, names, names)
def test_two_tables_never_share_a_lake_path(schema: str, table: str, other_schema: str, other_table: str) -> None:
    same = keys.lake_path(schema, table) == keys.lake_path(other_schema, other_table)
    assert same == ((schema, table) == (other_schema, other_table))
    assert keys.lake_path(schema, table).count("/") == 1


@given(names, names, st.integers(1, 2**32 - 1))
def test_a_path_of_its_own_is_never_one_of_a_name(schema: str, table: str, oid: int) -> None:
    assert keys.is_of_its_own(keys.lake_path_of_its_own(oid, schema, table))
    assert not keys.is_of_its_own(keys.lake_path(schema, table))


@given(st.integers(1, 10**16 - 1), st.integers(1, 10**16 - 1))
def test_entries_sort_as_their_numbers_and_before_every_checkpoint(one: int, other: int) -> None:
    assert (keys.manifest_entry(one) < keys.manifest_entry(other)) == (one < other)
    assert keys.manifest_seq(keys.manifest_entry(one)) == one
    assert keys.manifest_entry(one) < keys.checkpoint(other)


@pytest.mark.parametrize(
    "key",
    ["manifest/1.json", "manifest/checkpoint/0000000000000001.json", "manifest/0000000000000001.json.bak", "data/x"],
)
def test_an_object_that_is_no_entry_is_named(key: str) -> None:
    with pytest.raises(ManifestCorrupt, match=re.escape(key)):
        keys.manifest_seq(key)


@given(st.integers(1, 10**8 - 1), st.integers(0, 2**32 - 1), st.integers(0, 10**10 - 1), st.integers(1, 2**32 - 1))
def test_every_key_that_is_made_is_a_key_for_every_store(epoch: int, xid: int, counter: int, oid: int) -> None:
    made = [
        keys.manifest_entry(counter),
        keys.checkpoint(counter),
        keys.segment(str(oid), epoch, counter),
        keys.staged(epoch, xid, counter),
        keys.apply_log(counter),
        keys.apply_complete(counter),
        keys.APPLY_LEASE,
    ]
    assert [checked_key(key) for key in made] == made
    assert len(set(made)) == len(made)
