"""What a source says of itself: a server, its slot, a table and its columns. What is not said of one is empty."""

from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar, get_origin, get_type_hints

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.source.facts import ServerFacts, SlotFacts

FactsT = TypeVar("FactsT")


def made(kind: type[FactsT], given: dict[str, Any]) -> FactsT:
    """A record. A field that is not given and has no default is zero, empty, False, or None where it may be."""
    hints, record = get_type_hints(kind), dict(given)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in record and field.default is MISSING:
            of = get_origin(hints[field.name]) or hints[field.name]
            record[field.name] = of() if of in (str, int, bool, tuple) else None
    return kind(**record)


def server(wal_end: int) -> ServerFacts:
    facts = {"system_identifier": "7", "timeline": 1, "database": "d", "database_oid": 5, "server_version": 180000}
    return made(ServerFacts, {**facts, "wal_end_lsn": wal_end, "wal_level": "logical", "encoding": "UTF8"})


def slot(*, restart: int | None, safe: int | None) -> SlotFacts:
    facts = {"name": "s", "plugin": "pgoutput", "slot_type": "logical", "database": "d", "wal_status": "reserved"}
    place = {"restart_lsn": restart, "confirmed_flush_lsn": restart, "safe_wal_size": safe}
    return made(SlotFacts, {**facts, **place, "active_pid": 1})


def column(name: str, attnum: int, **changes: object) -> ColumnFacts:
    of_text = {"type_oid": 25, "typmod": -1, "base_type_oid": 25, "base_typmod": -1, "type_name": "text"}
    can = {"output_function": "pg_catalog.textout", "storable_out_of_line": True, "selectable": True, "xmin": 100}
    return made(ColumnFacts, {"name": name, "attnum": attnum, **of_text, **can, **changes})


ID = column(
    "id", 1, type_oid=23, base_type_oid=23, type_name="integer", in_primary_key=True, in_identity=True, not_null=True
)

BODY = column("body", 2)

C1 = replace(ID, name="c1", type_oid=20, base_type_oid=20, type_name="bigint")


def numbered(number: int) -> TableFacts:
    """The table of this number of tests.support.manifests, as the catalog has it."""
    return table(C1, oid=number, name=f"t{number}")


def table(*columns: ColumnFacts, **changes: object) -> TableFacts:
    relation = {"oid": 16400, "schema": "public", "name": "t", "relkind": "r", "relpersistence": "p"}
    shape = {"relfilenode": 16400, "replica_identity": "d", "columns": columns}
    can = {"role": "sluice", "schema_usable": True}
    member = {"publication": "sluice_shop", "publishes": "iudt", "memberships": ("entry 1",), "removals": -1}
    return made(TableFacts, {**relation, **shape, **can, **member, "publication_altered": "1", **changes})
