from dataclasses import replace

import pytest

from sluice_spark.catalog.columns import Column
from sluice_spark.catalog.entries import Entry, Found, is_as_wanted, place, taken_by

LAKE = "s3://lake/bronze"
WANTED = Entry("shop.orders", "s3a://lake/bronze/shop/orders", "shop", "16385", (Column("Id", "long", "the id"),))
OURS = Found(
    "s3a://lake/bronze/shop/orders",
    is_delta=True,
    columns=(("id", "bigint", "the id"),),
    pipeline="shop",
    table="16385",
)
NAMES = {"16385": "shop.orders"}


def _taken(found: Found, names: dict[str, str] = NAMES) -> str:
    return taken_by(WANTED, found, lake=LAKE, names=names)


@pytest.mark.parametrize(
    "found",
    [
        OURS,
        replace(OURS, location="s3://lake/bronze/shop/orders/"),
        replace(OURS, pipeline="", table=""),  # somebody registered the lake table by hand
        replace(OURS, location="s3a://lake/bronze/shop/orders_old"),  # an older generation
        replace(OURS, pipeline="before", location="s3n://lake/bronze/shop/orders"),  # lake.replaces
    ],
)
def test_an_entry_of_the_lake_table_or_of_one_before_it_is_ours(found: Found) -> None:
    assert _taken(found) == ""


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (replace(OURS, location="s3a://other/orders"), "outside of lake.uri"),
        (replace(OURS, location="s3a://lake/bronze2/orders"), "outside of lake.uri"),
        (replace(OURS, pipeline="", location="s3a://lake/bronze/shop/x"), "has not registered"),
        (replace(OURS, pipeline="other", location="s3a://lake/bronze/shop/x"), "has not registered"),
        (replace(OURS, is_delta=False), "no Delta table"),
    ],
)
def test_an_entry_that_leads_elsewhere_is_left_as_it_is(found: Found, why: str) -> None:
    assert why in _taken(found)


def test_the_entry_of_another_table_is_taken_over_only_when_that_has_left_the_name() -> None:
    found = replace(OURS, table="99", location="s3a://lake/bronze/shop/other")
    assert "another table of this pipeline" in _taken(found, {**NAMES, "99": "shop.orders"})
    assert _taken(found, {**NAMES, "99": "shop.renamed"}) == ""
    assert _taken(found) == ""


def test_an_entry_needs_nothing_while_place_columns_comments_and_marks_are_as_wanted() -> None:
    assert is_as_wanted(WANTED, OURS)
    for found in (
        replace(OURS, columns=()),
        replace(OURS, columns=(("id", "bigint", ""),)),
        replace(OURS, location="s3a://lake/bronze/shop/older"),
        replace(OURS, table="1"),
    ):
        assert not is_as_wanted(WANTED, found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/a/b", "file:///a/b/"),
        ("/a/b", "file:///a/b"),
        ("file:///a%20b", "file:/a b"),
        ("s3a://x/y", "s3://x/y/"),
    ],
)
def test_one_location_has_one_place_however_it_is_spelled(one: str, other: str) -> None:
    assert place(one) == place(other)
    assert place(one) != place(f"{other.rstrip('/')}x")
