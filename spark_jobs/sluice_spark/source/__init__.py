"""The spool as a data source of Spark: `spark.dataSource.register(SluiceDataSource)`, then `format("sluice")`."""

from sluice_spark.source.data_source import SluiceDataSource

__all__ = ["SluiceDataSource"]
