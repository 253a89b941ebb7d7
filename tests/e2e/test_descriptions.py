"""COMMENT ON, keys and labels of a real server in the lake, as another engine shows them, for every kind."""

import json
from typing import Any

from deltalake import DeltaTable

from sluice.contract.lake_targets import LakeTarget
from tests.e2e.mirror import Mirror
from tests.e2e.test_targets import Fed
from tests.support.compare import assert_equal

TARGETS = (LakeTarget(), LakeTarget("history", "orders_history"), LakeTarget("changelog", "orders_log"))
ODD = "Bought \"here\": 'all' of\nit \\ \U0001f600"


def _follow(mirror: Mirror) -> None:
    fed = Fed(mirror)
    fed.targets = TARGETS
    fed.follow()


def _said(mirror: Mirror, name: str) -> tuple[str | None, dict[str, str], dict[str, dict[str, Any]]]:
    table = DeltaTable(mirror.lake_path() / "shop" / f"lake_public_{name}")
    fields = {field["name"]: field["metadata"] for field in json.loads(table.schema().to_json())["fields"]}
    return table.metadata().description, dict(table.metadata().configuration), fields


NAMES = ("orders", "orders_history", "orders_log")


def test_comments_keys_and_labels_of_the_server_are_in_the_lake_and_followed(mirror: Mirror) -> None:
    mirror.execute(
        "CREATE TYPE state AS ENUM ('new', 'paid')",
        "CREATE TABLE buyers (id int PRIMARY KEY)",
        "CREATE TABLE orders (id int PRIMARY KEY, buyer int REFERENCES buyers, state state, price numeric(9,2))",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "INSERT INTO buyers VALUES (1)",
        "INSERT INTO orders VALUES (1, 1, 'new', 9.99)",
        f"COMMENT ON TABLE orders IS $${ODD}$$",
        "COMMENT ON COLUMN orders.price IS 'with taxes'",
        f"CREATE PUBLICATION {mirror.database.publication} FOR ALL TABLES",
    )
    _follow(mirror)
    for name in NAMES:
        comment, properties, fields = _said(mirror, name)
        assert (comment, fields["price"]["comment"]) == (ODD, "with taxes"), name
        assert json.loads(properties["sluice.primaryKey"]) == ["id"]
        (key,) = json.loads(properties["sluice.foreignKeys"])
        assert (key["columns"], key["table"], key["references"]) == (["buyer"], "public.buyers", ["id"])
        assert (fields["price"]["sluice.type"], fields["state"]["sluice.type"]) == ("numeric(9,2)", "public.state")
        assert json.loads(fields["state"]["sluice.labels"]) == ["new", "paid"]

    mirror.execute(
        "COMMENT ON TABLE orders IS NULL",
        "COMMENT ON COLUMN orders.price IS 'without taxes'",
        "ALTER TABLE orders RENAME price TO net",
        "ALTER TYPE state ADD VALUE 'sent'",
        "ALTER TABLE orders DROP CONSTRAINT orders_buyer_fkey",
    )
    _follow(mirror)
    mirror.execute("INSERT INTO orders VALUES (2, 1, 'sent', 1.50)")
    _follow(mirror)
    for name in NAMES:
        comment, properties, fields = _said(mirror, name)
        assert (comment, "sluice.foreignKeys" in properties) == (None, False), name
        assert (fields["net"]["comment"], "price" in fields) == ("without taxes", False)
        assert json.loads(fields["state"]["sluice.labels"]) == ["new", "paid", "sent"]
    paths = {"orders": "shop/lake_public_orders"}
    assert_equal(mirror.database, ["orders"], lake_uri=mirror.lake_uri(), paths=paths)
