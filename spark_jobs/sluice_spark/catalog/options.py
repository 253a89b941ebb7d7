"""The options of a catalog, and the way from them to one that can be asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sluice.contract.catalog_names import CatalogNames
from sluice_spark import storage
from sluice_spark.catalog.client import Catalog
from sluice_spark.catalog.glue import GlueCatalog
from sluice_spark.catalog.hive import HiveCatalog
from sluice_spark.catalog.unity import UnityCatalog
from sluice_spark.options import ApplyOptions


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """`kind` is hive, glue or unity, `names` says what tables are called there, `token` is a secret."""

    kind: str
    names: CatalogNames
    uri: str
    token: str = field(repr=False)
    create_schemas: bool
    timeout_seconds: float

    @staticmethod
    def of(options: ApplyOptions) -> "CatalogOptions | None":
        """None when lake tables get no names."""
        given = options.catalog
        return CatalogOptions(**{**given, "names": CatalogNames(**given["names"])}) if given else None

    def open(self, options: ApplyOptions, *, jvm: Callable[[], Any]) -> Catalog:
        """Connects to nothing yet. `jvm` is one that has Spark's jars. Raises UsageError."""
        timeout, create = self.timeout_seconds, self.create_schemas
        if self.kind == "hive":
            return HiveCatalog(jvm(), uri=self.uri, timeout_seconds=timeout, create_schemas=create)
        if self.kind == "glue":
            given = options.lake_options
            return GlueCatalog(given, endpoint=self.uri, timeout_seconds=timeout, create_schemas=create)
        return UnityCatalog(self.uri, token=self.token, timeout_seconds=timeout, create_schemas=create)

    def location(self, lake_uri: str, path: str) -> str:
        """Where a lake table is, as this kind of catalog spells it."""
        if urlsplit(lake_uri).scheme == "file":
            return f"file://{storage.join(lake_uri, path)}"
        found = storage.join(lake_uri, path)
        # Hive and open Spark know the store by its connector, others by its own name.
        return found if self.kind == "hive" else found.replace("s3a://", "s3://", 1)
