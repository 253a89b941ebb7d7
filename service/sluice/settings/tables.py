"""What differs for one table: its policies, and what happens to its columns before anything is stored."""

from typing import Annotated

from pydantic import AfterValidator, Field

from sluice.contract.column_rules import NewColumns
from sluice.contract.table_policy import Contract, OnChange, OnRename, OnWiden
from sluice.settings.columns import ColumnSettings
from sluice.settings.layout import LayoutSettings
from sluice.settings.section import LONGEST_FRESHNESS, ApplyWay
from sluice.settings.targets import TargetSettings, of_different_names
from sluice.settings.values import Duration


class TableSettings(LayoutSettings):
    """What differs for one table."""

    targets: Annotated[tuple[TargetSettings, ...], AfterValidator(of_different_names)] | None = Field(
        None, description="the lake tables that it feeds; by default one, of the kind that lake.mode names"
    )
    on_change: OnChange | None = Field(None, description="as lake.on_change, for this table")
    on_widen: OnWiden | None = Field(None, description="as lake.on_widen, for this table")
    on_rename: OnRename | None = Field(None, description="as lake.on_rename, for this table, by its new name")
    contract: Contract | None = Field(None, description="as lake.contract, for this table")
    way: ApplyWay | None = Field(None, description="as apply.way, for this table")
    freshness: Duration | None = Field(
        None, ge=0, le=LONGEST_FRESHNESS, description="as apply.freshness, for this table"
    )
    maintenance: bool | None = Field(
        None, description="false leaves the maintenance of this lake table, including VACUUM, to you"
    )
    vacuum_after: Duration | None = Field(
        None, ge=3600, le=10 * 365 * 86400, description="as lake.vacuum_after, for this table"
    )
    columns: dict[str, ColumnSettings] = Field(
        default_factory=dict,
        description="column rules by column name, applied before anything is stored: exclude, include, "
        "{mask: TEXT}, {truncate: CHARACTERS} or {hash: hmac-sha256, key_file: FILE}",
    )
    new_columns: NewColumns = Field(
        "include",
        description="exclude omits columns that are added after the table joined, until columns lists them",
    )
