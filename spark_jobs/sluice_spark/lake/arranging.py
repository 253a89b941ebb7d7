"""A lake table gets the properties and the clustering that the configuration asks for, and says of itself what the
source says of its table.

Owns that nothing is committed where the table has them already, and that what the configuration no longer names
stays: somebody else may rely on it. None of these commits adds or removes a row. (Delta: table properties, liquid
clustering.)
"""

import time
from collections.abc import Collection, Sequence
from functools import partial

import structlog
from pyspark.sql import Row

from sluice.contract.lake_layout import MAPPING, VECTORS, WITHOUT, LakeLayout, refused_column
from sluice.errors import ApplyError, StoreError, UnsupportedChange
from sluice.manifest.values import TableState
from sluice_spark.lake.changes_to_commit import DescribedColumns
from sluice_spark.lake.describing import COMMENT, Words
from sluice_spark.lake.failures import SparkGone, translated_errors
from sluice_spark.lake.plan import Columns
from sluice_spark.lake.sql import escaped, quote
from sluice_spark.lake.table import LakeTable

AGAIN_SECONDS = 60.0
"""After a failure, the next attempt is made with a window that comes so much later."""

_FEATURES = {VECTORS: "deletionVectors", MAPPING: "columnMapping"}

_log = structlog.get_logger("sluice.apply")


class Arrangements:
    """Which lake tables, by path, were found to lie as they are configured, or are tried again later. Threads may share
    it: a table is in one of them at a time.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._words: dict[str, Words] = {}

    def turn(self, lake: LakeTable, state: TableState, version: int, *, anew: bool) -> str | None:
        """Arranges `lake`, which has come to the schema version `version` (0: that of its snapshot), unless that was
        done; a table that was made `anew`, or of which something else is to be said, is arranged again. Returns why it
        does not lie as configured, empty when it does, None when it is not its turn. Raises SparkGone,
        UnsupportedChange for what somebody else did to the table.
        """
        now, what = time.monotonic(), words_of(state, version)
        anew = anew or self._words.get(lake.path) != what
        if lake.place.version < 0 or (not anew and now < self._due.get(lake.path, now)):
            return None
        failed = ""
        for step in (partial(tell, lake, what), partial(arrange, lake, state.layout)):
            try:
                step()
            except SparkGone:
                raise
            except (ApplyError, StoreError) as error:
                said = f"{error}; {error.hint}" if error.hint else str(error)
                _log.warning("a lake table does not have the configured layout", path=lake.path, error=said)
                failed = failed or said
        self._due[lake.path] = now + AGAIN_SECONDS if failed else float("inf")
        if what is not None:
            self._words[lake.path] = what
        return failed


def words_of(state: TableState, version: int) -> Words | None:
    """What the lake table in the schema version `version` (0: that of its snapshot) is to say of itself."""
    number = version or (state.snapshot.schema_version if state.snapshot is not None else 0)
    schema = state.schemas.get(number)
    has_comment = any(name == COMMENT for name, _ in state.layout.properties)
    return Words(state.described, schema, has_comment) if schema is not None else None


def require_partitions(partitions: Sequence[str], columns: Columns, name: str) -> None:
    """Raises UnsupportedChange when a lake table with `columns` cannot have these `partitions`. `name` is that of the
    source table.
    """
    for column in partitions:
        if said := refused_column(column, dict(columns), partitions=True):
            raise UnsupportedChange(f"{name}: {said}", hint="correct partition_by in the configuration")
    if len(partitions) == len(columns):
        raise UnsupportedChange(f"{name}: no column is left beside those of partition_by")


def uncluster(lake: LakeTable, keeps: Collection[str]) -> None:
    """Ends the clustering of `lake` by a column that is about to go: `keeps` are the names of those that stay. Delta
    would look for it in vain.
    """
    if not set(_detail(lake)["clusteringColumns"]) <= set(keeps):
        lake.alter("CLUSTER BY NONE")


def _detail(lake: LakeTable) -> Row:
    with translated_errors():
        (found,) = lake.session.sql(f"DESCRIBE DETAIL {lake.expression}").collect()
    return found


def tell(lake: LakeTable, what: Words | None) -> None:
    """Commits what `lake` does not say of `what`, without a job of Spark. Raises ApplyError."""
    if what is None:
        return
    app_id = f"{lake.app_id}/description"
    version = lake.place.version + 1
    try:
        lake.commit_newest(version, DescribedColumns({app_id: version}, what), app_id=app_id)
    except UnsupportedChange as error:
        # If somebody else changed the table, the next window finds it.
        raise ApplyError(f"comments and keys of the source: {error}", hint=error.hint) from error


def arrange(lake: LakeTable, layout: LakeLayout) -> None:
    """Commits what `lake` lacks of `layout`. Raises ApplyError, which says what cannot be."""
    if not layout:
        return
    found = _detail(lake)
    kinds = dict(lake.columns())
    # Delta keeps a property of this name as the comment of the table.
    present = {**found["properties"], COMMENT: found["description"]}
    wanted = {name: value for name, value in layout.properties if name not in WITHOUT and present.get(name) != value}
    for name, value in sorted(wanted.items()):
        # One at a time: Delta tracks rows in a command that sets nothing else, and says of none why it refuses it.
        try:
            lake.alter(f"SET TBLPROPERTIES ({escaped(name)} = {escaped(value)})")
        except ApplyError as error:
            raise ApplyError(f"property {name}: {error}", hint="correct properties in the configuration") from error
    for column in layout.cluster_by:
        if said := refused_column(column, kinds, partitions=False):
            raise ApplyError(said, hint="correct cluster_by in the configuration")
    clustered, partitioned = list(found["clusteringColumns"]), list(found["partitionColumns"])
    if layout.cluster_by and clustered != list(layout.cluster_by):
        if partitioned:
            raise ApplyError("a partitioned table cannot be clustered", hint="`sluice resync` makes it again")
        lake.alter(f"CLUSTER BY ({', '.join(map(quote, layout.cluster_by))})")
    if partitioned != list(layout.partition_by):
        now = f"partitioned by {', '.join(partitioned)}" if partitioned else "not partitioned"
        asked = ", ".join(layout.partition_by) or "none"
        raise ApplyError(
            f"the lake table is {now}, and partition_by asks for {asked}", hint="`sluice resync` makes it again"
        )
    for name in sorted(layout.without):
        if _FEATURES[name] in found["tableFeatures"]:
            what = f"the lake table has {_FEATURES[name]}, and keeps it while it is there: {name} does not hold"
            raise ApplyError(what, hint="create it again with `sluice rebuild`, or give the target another name")
