"""Pipelines whose tables have column rules, and what must be nowhere then."""

from collections.abc import Mapping
from typing import Any

from sluice.contract.column_rules import ColumnRules
from sluice.contract.column_values import HashKeys, key_id
from sluice.contract.schema import ColumnRule, RuleKind
from sluice.tables.policies import Policies, TablePolicy
from tests.support import canary
from tests.support.ingesting import IngestPipeline

HIDDEN = "canary-hidden-2f9c71"
KEYS = (b"a key of 16 bytes", b"another key, of many more bytes than the 64 of a block of SHA-256, as it happens")
LARGE = f"'{HIDDEN} ' || repeat('x', 9000)"
OLD_ROWS: dict[str, tuple[str, ...]] = {
    "key": (),
    "full": ("ALTER TABLE t REPLICA IDENTITY FULL",),
    "without a key": ("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t REPLICA IDENTITY FULL"),
}
"""What makes the server send more or less of an old row, and of a table without a key all of it."""


def mask(text: str) -> ColumnRule:
    return ColumnRule(RuleKind.MASK, mask=text)


def truncate(length: int) -> ColumnRule:
    return ColumnRule(RuleKind.TRUNCATE, length=length)


def hashed(key: bytes) -> ColumnRule:
    return ColumnRule(RuleKind.HASH, key_id=key_id(key))


def with_keys(columns: Mapping[str, ColumnRule | None], **more: Any) -> ColumnRules:
    return ColumnRules(columns, keys=HashKeys(KEYS), **more)


def under(rules: ColumnRules, *tables: str, **more: Any) -> dict[str, Any]:
    """Options of an ingest that has these rules for the tables, by default for public.t."""
    policies = Policies(tables={name: TablePolicy(rules=rules, **more) for name in tables or ("public.t",)})
    return {"tables": (), "policies": policies}


def written(*statements: str) -> tuple[str, ...]:
    """The statements with what must not be stored in them."""
    return tuple(one.replace("{hidden}", HIDDEN).replace("{large}", LARGE) for one in statements)


def run(pipeline: IngestPipeline, *statements: str, **options: Any) -> None:
    """Ingest, after these statements with what must not be stored in them."""
    pipeline.run(*written(*statements), **options)


def assert_hidden(pipeline: IngestPipeline) -> None:
    assert canary.in_stored(pipeline.folder, HIDDEN) == []


def assert_equal(pipeline: IngestPipeline, *, hidden: bool = True) -> None:
    """Every table is live and equal under the rules; what they hide is nowhere, unless others let it in (`hidden`)."""
    pipeline.assert_equal(hash_keys={key_id(key): key for key in KEYS})
    if hidden:
        assert_hidden(pipeline)


def carry(pipeline: IngestPipeline, statements: tuple[str, ...], *, way: str, options: Mapping[str, Any]) -> None:
    """Carries out the statements, has ingest take them in, and compares. `way`: one by one, with ingest after each or
    after all ("catalog ahead"); or in one transaction, which is prepared first where the way says so.
    """
    if way in ("one by one", "catalog ahead"):
        for statement in written(*statements):
            pipeline.execute(statement)
            if way == "one by one":
                pipeline.run(**options)
    else:
        end = "PREPARE TRANSACTION 'both'" if way == "prepared" else "COMMIT"
        pipeline.database.transact(*written(*statements), end=end)
        if way == "prepared":
            pipeline.run(**options)
            assert_hidden(pipeline)
            pipeline.run(**options)  # what was prepared is read back from the store
            pipeline.execute("COMMIT PREPARED 'both'")
    pipeline.run(times=2, **options)
    assert_equal(pipeline)


def finding(pipeline: IngestPipeline, name: str = "public.t") -> tuple[str, str]:
    """The state of the table, and the finding that it has for its reason."""
    table = pipeline.table(name)
    return table.state, table.why.parameters["finding"] if table.why is not None else ""


def shape(pipeline: IngestPipeline, name: str = "public.t") -> tuple[list[str], list[str]]:
    """The columns that are stored, and those that are not."""
    state = pipeline.table(name)
    schema = state.schemas[state.schema_version]
    return [one.name for one in schema.carried.columns], [one.column.name for one in schema.excluded]
