"""What is to become of tables and of their columns, from the settings and the files with the keys of hashes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.contract.catalog_names import CatalogNames
from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.contract.column_values import HashKeys, key_id
from sluice.contract.envelope import OP_NAMES
from sluice.contract.lake_names import LakeNames
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.schema import ColumnRule, RuleKind
from sluice.errors import UsageError
from sluice.manifest.targets import Layout
from sluice.settings import Settings
from sluice.settings.columns import ColumnSettings, HashSettings, MaskSettings
from sluice.settings.layout import LAYOUT_KEYS
from sluice.settings.tables import TableSettings

if TYPE_CHECKING:
    from sluice.tables.policies import Policies

POLICY_KEYS = {"on_change", "on_widen", "on_rename", "contract"}
"""Settings of a table that decide what ingest does when it changes."""
NOT_FOR_THE_APPLIER = {"columns", "new_columns", "targets", *LAYOUT_KEYS}
"""Settings of a table that the applier does not get, or not as they are: it reads what was made of columns before."""
SHORTEST_KEY = 16
"""Bytes. A hash with a key that can be tried out is as good as none."""


def policies(settings: Settings) -> "Policies":
    """What is to become of tables that change, and of columns. Raises UsageError for a key that cannot be read."""
    from sluice.tables.policies import Policies, TablePolicy

    default = TablePolicy(
        **settings.lake.model_dump(include=POLICY_KEYS),
        targets=default_targets(settings),
        names=names(settings),
        accept_missing=accepted(settings),
        binary=settings.source.binary,
    )
    own = {name: table.model_dump(include=POLICY_KEYS, exclude_none=True) for name, table in settings.tables.items()}
    rules = column_rules(settings)
    default = replace(default, ruled=frozenset(name for name, found in rules.items() if found))
    return Policies(
        default,
        {name: replace(default, rules=rules[name], targets=targets_of(settings, name), **own[name]) for name in own},
    )


def names(settings: Settings) -> LakeNames:
    """Where lake tables stand. Raises UsageError."""
    database = _database(settings, "lake.path", settings.lake.path)
    return LakeNames(settings.lake.path, settings.lake.lower, settings.pipeline, database)


def catalog_names(settings: Settings) -> CatalogNames | None:
    """What lake tables are called in the catalog, None without one. Raises UsageError."""
    catalog = settings.catalog
    if catalog.kind == "none":
        return None
    database = _database(settings, "catalog.name", catalog.template)
    return CatalogNames(catalog.template, settings.pipeline, database)


def _database(settings: Settings, setting: str, template: str) -> str:
    if "{database}" not in template:
        return ""
    from sluice.source.credentials import parsed

    database = str(parsed(settings.source.dsn.get_secret_value()).get("dbname", ""))
    if not database:
        raise UsageError(f"{setting} has {{database}}, and source.dsn does not name one", hint="add dbname to it")
    return database


def layout(settings: Settings) -> Layout:
    """Where lake tables will stand that are not there yet. Raises UsageError."""
    return Layout(names(settings), lambda name: targets_of(settings, name))


def default_targets(settings: Settings) -> tuple[LakeTarget, ...]:
    """The lake tables of a source table for which none are configured."""
    return (LakeTarget(settings.lake.mode),)


def targets_of(settings: Settings, name: str) -> tuple[LakeTarget, ...]:
    """The lake tables that source table `name`, as schema.table, feeds."""
    table = settings.tables.get(name)
    if table is None:
        return default_targets(settings)
    if table.targets is None:
        return (LakeTarget(settings.lake.mode, layout=table.layout()),)
    return tuple(target.target(table) for target in table.targets)


def accepted(settings: Settings) -> str:
    """A letter for each kind of change that the publication may leave out."""
    return "".join(letter for letter, name in OP_NAMES.items() if name in settings.source.accept_missing)


def column_rules(settings: Settings) -> dict[str, ColumnRules]:
    """What happens to columns before anything is stored, by schema.table. Raises UsageError."""
    keys: dict[str, bytes] = {}
    for name, table in settings.tables.items():
        for column, rule in table.columns.items():
            if isinstance(rule, HashSettings) and rule.key_file not in keys:
                keys[rule.key_file] = _key(rule.key_file, f"tables.{name}.columns.{column}")
    return {name: _rules(table, keys) for name, table in settings.tables.items()}


def key_files(settings: Settings) -> tuple[str, ...]:
    """The files with the keys of hashes."""
    rules = (rule for table in settings.tables.values() for rule in table.columns.values())
    return tuple(dict.fromkeys(rule.key_file for rule in rules if isinstance(rule, HashSettings)))


def _rules(table: TableSettings, keys: Mapping[str, bytes]) -> ColumnRules:
    used = [keys[rule.key_file] for rule in table.columns.values() if isinstance(rule, HashSettings)]
    columns = {name: _rule(rule, keys) for name, rule in table.columns.items()}
    return ColumnRules(columns, new_columns=table.new_columns, keys=HashKeys(used))


def _rule(rule: ColumnSettings, keys: Mapping[str, bytes]) -> ColumnRule | None:
    if isinstance(rule, str):
        return EXCLUDED if rule == "exclude" else None
    if isinstance(rule, HashSettings):
        return ColumnRule(RuleKind.HASH, key_id=key_id(keys[rule.key_file]))
    if isinstance(rule, MaskSettings):
        return ColumnRule(RuleKind.MASK, mask=rule.mask)
    return ColumnRule(RuleKind.TRUNCATE, length=rule.truncate)


def _key(path: str, where: str) -> bytes:
    """The bytes of the file without a newline at the end. `where` is the rule that names it."""
    try:
        key = Path(path).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise UsageError(
            f"{where}: the key file {path} cannot be read: {error.strerror}",
            hint="`openssl rand -hex 32` makes a key; every process of the pipeline but the applier reads it",
        ) from None
    if len(key) < SHORTEST_KEY:
        raise UsageError(
            f"{where}: the key in {path} has {len(key)} bytes, and a hash needs at least {SHORTEST_KEY}",
            hint="`openssl rand -hex 32` makes one",
        )
    return key
