"""New columns that the contract of a table leaves out."""

from sluice.tables.policies import Policies, TablePolicy
from tests.e2e.mirror import Mirror
from tests.support.extent import slow


@slow
def test_columns_that_are_left_out_are_in_no_row_of_the_lake(mirror: Mirror) -> None:
    """Nor are values that would be marked beside them."""
    narrow = {"tables": (), "policies": Policies(TablePolicy(contract="ignore_new"))}
    mirror.execute(
        "CREATE TABLE narrow (id int PRIMARY KEY, d date)",
        "INSERT INTO narrow VALUES (1, 'infinity'), (2, '2020-01-01')",
        f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE narrow",
    )
    mirror.follow(**narrow)
    mirror.execute(
        "ALTER TABLE narrow ADD x date DEFAULT '-infinity', ADD y int DEFAULT 1",
        "INSERT INTO narrow VALUES (3, 'infinity', 'infinity', 3), (4, '2021-01-01', 'infinity', 4)",
        "UPDATE narrow SET x = '2022-01-01', y = 5 WHERE id = 1",
    )
    mirror.follow(**narrow)
    marks = {1: {"d": "infinity"}, 2: None, 3: {"d": "infinity"}, 4: None}

    def assert_narrow() -> None:
        rows = mirror.rows("narrow")
        assert {row["id"]: row["_sluice_special"] for row in rows} == marks
        assert all(row.keys().isdisjoint({"x", "y"}) for row in rows)

    assert_narrow()
    mirror.execute("ALTER TABLE narrow ALTER id TYPE int USING id + 10")
    mirror.follow(**narrow)
    marks = {key + 10: value for key, value in marks.items()}
    assert_narrow()
    assert mirror.pipeline.table("public.narrow").resyncs.counts == {"rewrite": 1}
