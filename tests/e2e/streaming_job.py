"""A Spark application of a user: reads two tables of a pipeline as streams, keeps each batch by its number, and joins
both. `python -m tests.e2e.streaming_job '{...}'`; it ends when it has read what there is, unless it is killed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice_spark import session
from sluice_spark.options import ApplyOptions
from sluice_spark.source import SluiceDataSource

CONNECT = "failed to connect back"


def run(spark: SparkSession, job: dict[str, Any]) -> None:
    """Both queries, until everything that is there now was read."""
    spark.dataSource.register(SluiceDataSource)
    folder = Path(job["folder"])

    def stream(table: str) -> DataFrame:
        reader = spark.readStream.format("sluice").option("spool", job["spool"]).option("pipeline", job["pipeline"])
        return reader.option("table", table).option("maxEntriesPerTrigger", job["most"]).load()

    def keep(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / "orders" / str(number)))

    kept = stream("public.orders").writeStream.foreachBatch(keep)
    orders = stream("public.orders").where("_change_type IN ('insert', 'snapshot')").select("id", "status").alias("o")
    payments = stream("public.payments").where("_change_type IN ('insert', 'snapshot')").alias("p")
    joined = orders.join(payments, sql.expr("o.id = p.order_id")).select("o.id", "p.payment_id", "p.amount")
    both = joined.writeStream.format("parquet").option("path", str(folder / "joined"))
    for name, writer in (("orders", kept), ("joined", both)):
        endless = job.get("endless", "")
        if endless in ("", name):
            _run(writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")), endless=bool(endless))


def _run(writer: DataStreamWriter, *, endless: bool) -> None:
    while True:
        try:
            if endless:
                writer.trigger(processingTime="0 seconds").start().awaitTermination()
            else:
                writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            # Spark waits ten seconds for its Python, which a machine with other work may need longer to start.
            if CONNECT not in str(error):
                raise
        else:
            return


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    place = Path(given["folder"]).as_uri()
    run(session.start(ApplyOptions("job", place, place, spark_master="local[2]", driver_memory="1g")), given)
