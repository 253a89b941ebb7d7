"""What a fresh JVM does slowly once, done before a window or a checkpoint needs it."""

from collections.abc import Callable

import numpy as np
from pyspark.sql import SparkSession

from sluice.store.base import ObjectStore
from sluice_spark.lake.direct.edit import Edit, with_vector
from sluice_spark.lake.direct.live_files import LiveFile
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
        base = DeltaTransaction(session, path)
        edit = Edit(base, "merge", reads=True, layout=base.layout(), marker=("sluice/warm-up", number), source=1)
        for add in base.files():
            edit.removes.append(add)
            # Nobody reads the vector, so that its file need not be there.
            edit.marked.append(LiveFile.of(with_vector(add, VectorFile().add(np.arange(number + 1)))))
        version = edit.run(session)
    log = LogUpkeep(session, path, store=store, folder=folder, require_owner=require_owner)
    log.name(log.write(version))
