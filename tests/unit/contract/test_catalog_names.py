import pytest

from sluice.contract.catalog_names import CatalogNames, misspelled, too_long


@pytest.mark.parametrize(
    ("template", "table", "expected"),
    [
        ("{schema}.{target}", ("Sales", "Order Lines", ""), "sales.order_lines"),
        ("lake.{schema}_{target}", ("Sales", "Order Lines", ""), "lake.sales_order_lines"),
        ("{pipeline}.{database}.{table}_{target}", ("s", "Order Lines", ""), "shop.my_db.order_lines_order_lines"),
        ("{schema}.{target}", ("public", "orders", "orders-log"), "public.orders_log"),
        ("{schema}.{target}", ("public", "Größe", ""), "public.gr__e"),
    ],
)
def test_a_name_of_each_target_has_small_letters_digits_and_underscores_alone(
    template: str, table: tuple[str, str, str], expected: str
) -> None:
    assert CatalogNames(template, "shop", "My-Db").name(*table) == expected


@pytest.mark.parametrize(
    ("template", "kind", "why"),
    [
        ("{schema}.{target}", "hive", ""),
        ("{schema}.{target}", "glue", ""),
        ("main.{schema}.{target}", "unity", ""),
        ("{schema}.{target}", "unity", "catalog.schema.table"),
        ("{schema}_{target}", "hive", "schema.table"),
        ("a.{schema}.{target}", "hive", "schema.table"),
        ("{schema}.{table}", "hive", "{target} must stand in it once"),
        ("{target}.{target}", "hive", "{target} must stand in it once"),
        ("{relation}.{target}", "hive", "{relation} is no part of a name"),
        ("{schema}-x.{target}", "hive", "letters, digits"),
        (".{target}", "hive", "letters, digits"),
    ],
)
def test_a_template_that_gives_no_names_is_refused_with_the_reason(template: str, kind: str, why: str) -> None:
    found = misspelled(template, kind)
    assert why in found
    assert bool(found) == bool(why)


def test_a_part_that_catalogs_would_cut_is_too_long() -> None:
    assert too_long(f"public.{'x' * 129}")
    assert not too_long(f"{'y' * 128}.{'x' * 128}")
