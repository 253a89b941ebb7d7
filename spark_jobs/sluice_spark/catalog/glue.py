"""AWS Glue's data catalog, through boto3, which is installed with `sluice-cdc[glue]`.

An entry has the form in which Spark on Glue, Trino and Athena know Delta tables: the provider that Spark writes, and
Athena's `table_type`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sluice.errors import UsageError
from sluice.printable import one_line
from sluice_spark.catalog.client import Catalog, CatalogAway, CatalogRefused
from sluice_spark.catalog.entries import (
    DELTA,
    INPUT,
    OUTPUT,
    PIPELINE,
    PROVIDER,
    SERDE,
    TABLE,
    Entry,
    Found,
)

_MISSING = "EntityNotFoundException"
_ATHENA = "table_type"
_LONGEST_REASON = 200
_OF_PEOPLE = ("Description", "Owner", "Retention")
_NOTHING: Mapping[str, Any] = {}


class GlueCatalog(Catalog):
    """The catalog of the account and region of `options`, those of the lake's store, or of the environment. `endpoint`
    is empty for AWS's own. Raises UsageError without boto3.
    """

    def __init__(
        self, options: Mapping[str, str], *, endpoint: str, timeout_seconds: float, create_schemas: bool
    ) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise UsageError(
                "catalog.kind is glue, and boto3 is not installed", hint="pip install 'sluice-cdc[glue]'"
            ) from error
        self._failure, self._refusal = BotoCoreError, ClientError
        super().__init__(create_schemas=create_schemas)
        given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
        config = Config(
            connect_timeout=timeout_seconds,
            read_timeout=timeout_seconds,
            retries={"total_max_attempts": 2, "mode": "standard"},
        )
        try:
            self._client: Any = boto3.client(
                "glue",
                region_name=given.get("region") or given.get("default_region"),
                endpoint_url=endpoint or None,
                aws_access_key_id=given.get("access_key_id"),
                aws_secret_access_key=given.get("secret_access_key"),
                aws_session_token=given.get("session_token"),
                config=config,
            )
        except BotoCoreError as error:
            raise UsageError(
                f"Glue cannot be asked: {type(error).__name__}", hint="lake.options.aws_region, or AWS_REGION"
            ) from error

    def find(self, name: str) -> Found | None:
        schema, table = name.split(".")
        answer = self._ask(lambda: self._client.get_table(DatabaseName=schema, Name=table), missing=None)
        if answer is None:
            return None
        found = answer["Table"]
        properties, storage = found.get("Parameters", {}), found.get("StorageDescriptor", {})
        kinds = {str(properties.get(one, "")).lower() for one in (PROVIDER, _ATHENA)}
        path = storage.get("SerdeInfo", {}).get("Parameters", {}).get("path")
        return Found(
            location=str(path or storage.get("Location", "")),
            is_delta=DELTA in kinds,
            columns=tuple((one["Name"], one["Type"], one.get("Comment", "")) for one in storage.get("Columns", ())),
            pipeline=str(properties.get(PIPELINE, "")),
            table=str(properties.get(TABLE, "")),
        )

    def replace(self, entry: Entry) -> None:
        schema, table = entry.parts
        found = self._ask(lambda: self._client.get_table(DatabaseName=schema, Name=table))["Table"]
        made = _input(entry, found)
        # Archived versions of an entry count against a quota.
        self._ask(lambda: self._client.update_table(DatabaseName=schema, TableInput=made, SkipArchive=True))

    def close(self) -> None:
        self._client.close()

    def _has_schema(self, schema: str) -> bool:
        return self._ask(lambda: self._client.get_database(Name=schema), missing=None) is not None

    def _create_schema(self, schema: str) -> None:
        self._ask(lambda: self._client.create_database(DatabaseInput={"Name": schema}))

    def _create_entry(self, entry: Entry) -> None:
        self._ask(lambda: self._client.create_table(DatabaseName=entry.parts[0], TableInput=_input(entry)))

    def _ask(self, do: Callable[[], Any], *, missing: Any = ...) -> Any:
        """What `do` gives; `missing`, where it is given, when Glue has no such object."""
        try:
            return do()
        except self._refusal as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code == _MISSING and missing is not ...:
                return missing
            said = one_line(str(error.response.get("Error", {}).get("Message", "")))[:_LONGEST_REASON]
            raise CatalogRefused(f"Glue refuses ({code}): {said}") from None
        except self._failure as error:
            raise CatalogAway(f"Glue does not answer ({type(error).__name__})") from None


def _input(entry: Entry, found: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """`found` is what it takes the place of."""
    return {
        **{name: found[name] for name in _OF_PEOPLE if name in found},
        "Name": entry.parts[1],
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**entry.properties_beside(found.get("Parameters", {})), _ATHENA: DELTA.upper()},
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": [
                {"Name": name, "Type": kind, **({"Comment": comment} if comment else {})}
                for name, kind, comment in entry.listed
            ],
            "Location": entry.location,
            "InputFormat": INPUT,
            "OutputFormat": OUTPUT,
            "SerdeInfo": {"SerializationLibrary": SERDE, "Parameters": entry.serde_parameters},
        },
    }
