"""What a fresh JVM does slowly once, done before a window or a checkpoint needs it."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from sluice.store.base import ObjectStore
from sluice_spark.lake.direct.edit import with_vector
from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.direct.vectors import VectorFile
from sluice_spark.lake.layout import TABLE_PROPERTIES
from sluice_spark.lake.log_upkeep import SETTINGS, LogUpkeep

_COMMITS = 4
_COLUMNS = ("id", "cast(id AS string) AS text", "cast(id AS decimal(12,2)) AS number", "cast(id AS timestamp) AS at")
_ROWS = 8


def warm_up(
    session: SparkSession, path: str, *, store: ObjectStore, folder: str, require_owner: Callable[[], None]
) -> None:
    """Makes a Delta table at `path`, where nothing may be, commits to it as windows do, and writes its checkpoint:
    with vectors and with statistics, as real tables have them. Executors must see `path` as well, which is `folder`
    (with its slash) in `store`. JVM errors pass.
    """
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    session.range(_ROWS).selectExpr(*_COLUMNS).write.format("delta").options(**TABLE_PROPERTIES).save(path)
    version = 0
    for number in range(_COMMITS):
        transaction = DeltaTransaction(session, path)
        transaction.layout()
        actions: list[dict[str, Any]] = []
        for add in transaction.files():
            gone = {"path": add["path"], "deletionTimestamp": int(time.time() * 1000), "dataChange": True}
            if vector := add.get("deletionVector"):
                gone["deletionVector"] = vector
            # Nobody reads the vector, so that its file need not be there.
            vector = VectorFile().add(np.arange(number + 1))
            actions += [{"remove": gone}, {"add": with_vector(add, vector)}]
        version = transaction.commit(
            actions,
            marker=("sluice/warm-up", number),
            operation="merge",
            metrics={"operationNumSourceRows": 1},
            reads=True,
        )
    log = LogUpkeep(session, path, store=store, folder=folder, require_owner=require_owner)
    log.name(log.write(version))
