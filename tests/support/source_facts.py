"""What a source says of itself: a server, its slot, a table and its columns."""

from dataclasses import replace

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.source.facts import ServerFacts, SlotFacts


def server(wal_end: int) -> ServerFacts:
    return ServerFacts(
        system_identifier="7",
        timeline=1,
        database="d",
        database_oid=5,
        server_version=180000,
        wal_end_lsn=wal_end,
        wal_level="logical",
        in_recovery=False,
        encoding="UTF8",
    )


def slot(*, restart: int | None, safe: int | None) -> SlotFacts:
    return SlotFacts(
        name="s",
        plugin="pgoutput",
        slot_type="logical",
        database="d",
        temporary=False,
        active_pid=1,
        restart_lsn=restart,
        confirmed_flush_lsn=restart,
        two_phase=False,
        failover=False,
        synced=False,
        wal_status="reserved",
        invalidation_reason="",
        conflicting=False,
        safe_wal_size=safe,
        catalog_xmin_age=None,
    )


def column(name: str, attnum: int, **changes: object) -> ColumnFacts:
    facts = ColumnFacts(
        name=name,
        attnum=attnum,
        type_oid=25,
        typmod=-1,
        base_type_oid=25,
        base_typmod=-1,
        type_name="text",
        holds_names=False,
        output_function="pg_catalog.textout",
        in_primary_key=False,
        in_identity=False,
        not_null=False,
        generated="",
        has_default=False,
        missing=None,
        xmin=100,
        storable_out_of_line=True,
        selectable=True,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


ID = column(
    "id", 1, type_oid=23, base_type_oid=23, type_name="integer", in_primary_key=True, in_identity=True, not_null=True
)

BODY = column("body", 2)

C1 = replace(ID, name="c1", type_oid=20, base_type_oid=20, type_name="bigint")


def numbered(number: int) -> TableFacts:
    """The table of this number of tests.support.manifests, as the catalog has it."""
    return table(C1, oid=number, name=f"t{number}")


def table(*columns: ColumnFacts, **changes: object) -> TableFacts:
    facts = TableFacts(
        oid=16400,
        schema="public",
        name="t",
        relkind="r",
        relpersistence="p",
        replica_identity="d",
        relfilenode=16400,
        role="sluice",
        schema_usable=True,
        policies_apply=False,
        is_partition=False,
        columns=columns,
        publication="sluice_shop",
        row_filter=None,
        removals=-1,
        published_columns=None,
        has_column_list=False,
        publishes="iudt",
        memberships=("entry 1",),
        publication_altered="1",
        estimated_rows=0,
        children=(),
        former_leaves=(),
        type_details=(),
        attributes=0,
        primary_key=0,
        toast=0,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]
