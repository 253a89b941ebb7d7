"""Paths of lake tables: by a template, the same again from what the manifest keeps, and never two for one name."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract import keys
from sluice.contract.lake_names import LakeNames, has_name, joined, misspelled, place_of, split
from sluice.contract.lake_targets import LakeTarget
from sluice.manifest.targets import Layout, target_path
from sluice.store.memory import MemoryStore
from tests.support.manifests import open_log, table
from tests.unit.contract.test_keys import names

TEMPLATES = (
    "{schema}/{target}",
    "{target}",
    "{database}/raw_{schema}_{target}_v1",
    "{pipeline}/{schema}/{table}/{target}",
    "{target}/{table}",
)


@given(st.sampled_from(TEMPLATES), st.booleans(), names, names, st.sampled_from(["h", "Orders_History"]))
def test_the_paths_of_all_targets_follow_from_what_the_manifest_keeps(
    template: str, lower: bool, schema: str, name: str, target: str
) -> None:
    assert misspelled(template) == ""
    made = LakeNames(template, lower, pipeline="shop", database="Shop DB")
    place = made.place(schema, name)
    path, pattern = split(place)
    assert place_of(path, pattern) == place
    assert "{" not in path
    assert path == path.lower() or not lower
    known = table(path=place)
    log = open_log(MemoryStore(uuid.uuid4().hex))
    log.append(known)
    state = log.state
    held = state.tables[known.table_id]
    assert (held.path, held.pattern) == (path, pattern)
    named = target_path(held, LakeTarget(name=target))
    assert named == Layout(made, lambda _: (LakeTarget(name=target),)).paths(schema, name)[target]
    assert (target.lower() if lower else target) in named
    assert named.count("/") == path.count("/")
    if pattern:
        assert has_name(path, pattern, name)
        assert joined(pattern, target) == named


def test_a_template_shows_where_each_part_goes() -> None:
    made = LakeNames("{database}/raw_{schema}_{target}_v1", lower=True, pipeline="shop", database="Shop")
    paths = Layout(made, lambda _: (LakeTarget(), LakeTarget("changelog", "Orders_Log"))).paths("Sales", "Ordérs")
    assert paths == {"": "shop/raw_sales_ord~c3~a9rs_v1", "Orders_Log": "shop/raw_sales_orders_log_v1"}
    own, pattern = split(made.place_of_its_own(77, "Sales", "Orders"))
    assert (own, keys.is_of_its_own(own)) == ("shop/raw_sales_orders_v1~t77", True)
    assert joined(pattern, "Log") == "shop/raw_sales_log_v1~t77"
    assert keys.beside("public/orders~t77", "log") == "public/log~t77"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{schema}/{tible}", "{tible} is no part of a path"),
        ("{schema}/{table}", "{target} must stand in it once"),
        ("{target}/{target}", "{target} must stand in it once"),
        ("/{target}", "no folder of a path is empty"),
        ("{schema}//{target}", "no folder of a path is empty"),
        ("_x/{target}", "begins with _"),
        ("../{target}", "letters, digits"),
        ("{target}.d", "letters, digits"),
        ("{target", "letters, digits"),
    ],
)
def test_a_template_that_gives_no_path_is_refused_with_the_reason(template: str, said: str) -> None:
    assert said in misspelled(template)
