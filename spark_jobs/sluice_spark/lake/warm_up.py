"""What a fresh JVM does slowly once, done before a window needs it."""

from pyspark.sql import SparkSession

from sluice_spark.lake.direct.transaction import DeltaTransaction
from sluice_spark.lake.layout import TABLE_PROPERTIES

_COMMITS = 3


def warm_up(session: SparkSession, path: str) -> None:
    """Makes a Delta table at `path`, where nothing may be, and commits to it. Executors must see
    `path` as well. JVM errors pass.
    """
    session.range(1).write.format("delta").options(**TABLE_PROPERTIES).save(path)
    for number in range(_COMMITS):
        transaction = DeltaTransaction(session, path)
        transaction.layout()
        list(transaction.files())
        transaction.commit([], marker=("sluice/warm-up", number), operation="append", metrics={}, reads=False)
