"""What a fresh JVM does slowly once, done before a window needs it."""

from pyspark.sql import SparkSession

from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import TABLE_PROPERTIES

_COMMITS = 4
_CHECKPOINT_INTERVAL = 3
"""The first checkpoint that a JVM writes costs seconds: the last commit begins from one."""


def warm_up(session: SparkSession, path: str) -> None:
    """Makes a Delta table at `path`, where nothing may be, and commits to it. Executors must see
    `path` as well. JVM errors pass.
    """
    properties = {**TABLE_PROPERTIES, "delta.checkpointInterval": str(_CHECKPOINT_INTERVAL)}
    session.range(1).write.format("delta").options(**properties).save(path)
    for number in range(_COMMITS):
        transaction = DeltaTransaction(session, path)
        transaction.layout()
        list(transaction.files())
        transaction.commit([], marker=("sluice/warm-up", number), operation="append", metrics={}, reads=False)
