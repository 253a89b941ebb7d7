"""Unity Catalog over its open REST interface, whose tables are external Delta tables here.

The interface can register a table and remove it, and changes nothing of its columns or its location. To remove an entry
costs what people have granted on it. So an entry stays as it was registered while its table stays where it is, and a
new location alone makes a new entry. Engines take the columns from the table's log. (Unity Catalog: API 2.1, Tables.)
"""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from sluice.printable import one_line
from sluice_spark.catalog.client import Catalog, CatalogAway, CatalogRefused
from sluice_spark.catalog.columns import spark_type, unity_type
from sluice_spark.catalog.entries import DELTA, PIPELINE, TABLE, Entry, Found, is_at

_ROOT = "/api/2.1/unity-catalog"
_LONGEST_REASON = 200
_LONGEST_ANSWER = 1 << 22


class UnityCatalog(Catalog):
    """The server at `uri`, asked with the bearer token `token`, if there is one."""

    def __init__(self, uri: str, *, token: str, timeout_seconds: float, create_schemas: bool) -> None:
        super().__init__(create_schemas=create_schemas)
        self._uri = uri
        self._token = token
        self._timeout = timeout_seconds

    def find(self, name: str) -> Found | None:
        answer = self._ask("GET", f"/tables/{quote(name)}")
        if answer is None:
            return None
        properties = answer.get("properties") or {}
        return Found(
            location=str(answer.get("storage_location") or ""),
            is_delta=(answer.get("table_type"), answer.get("data_source_format")) == ("EXTERNAL", DELTA.upper()),
            pipeline=str(properties.get(PIPELINE, "")),
            table=str(properties.get(TABLE, "")),
        )

    def is_as_wanted(self, entry: Entry, found: Found) -> bool:
        return is_at(entry, found)

    def _has_schema(self, schema: str) -> bool:
        return self._ask("GET", f"/schemas/{quote(schema)}") is not None

    def _create_schema(self, schema: str) -> None:
        catalog, _, name = schema.partition(".")
        self._require("POST", "/schemas", {"name": name, "catalog_name": catalog})

    def _create_entry(self, entry: Entry) -> None:
        catalog, schema, table = entry.parts
        self._require(
            "POST",
            "/tables",
            {
                "name": table,
                "catalog_name": catalog,
                "schema_name": schema,
                "table_type": "EXTERNAL",
                "data_source_format": DELTA.upper(),
                "storage_location": entry.location,
                "columns": _columns(entry),
                "properties": entry.marks,
            },
        )

    def replace(self, entry: Entry) -> None:
        """Engines that look in between do not find the name. A kill in between is made good by the next start."""
        self._require("DELETE", f"/tables/{quote(entry.name)}")
        self.create(entry)

    def close(self) -> None:
        """Each request has a connection of its own."""

    def _require(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._ask(method, path, body)
        if answer is None:
            raise CatalogRefused(f"Unity Catalog refuses (404): {method} {path}")
        return answer

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer, None for 404."""
        request = urllib.request.Request(f"{self._uri}{_ROOT}{path}", method=method)  # noqa: S310 - http(s) alone, as the settings are
        request.add_header("Accept", "application/json")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310 - likewise
                return _object(answer.read(_LONGEST_ANSWER))
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            said = one_line(str(_object(error.read(_LONGEST_ANSWER)).get("message", "")))[:_LONGEST_REASON]
            if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR or error.code == http.HTTPStatus.TOO_MANY_REQUESTS:
                raise CatalogAway(f"Unity Catalog fails ({error.code}): {said}") from None
            raise CatalogRefused(f"Unity Catalog refuses ({error.code}): {said}") from None
        except (OSError, http.client.HTTPException) as error:
            raise CatalogAway(f"Unity Catalog at {self._uri} does not answer ({type(error).__name__})") from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _columns(entry: Entry) -> list[dict[str, Any]]:
    found = []
    for place, column in enumerate(entry.columns):
        kind = column.kind
        made: dict[str, Any] = {
            "name": column.name,
            "type_text": spark_type(kind),
            "type_name": unity_type(kind),
            "type_json": json.dumps({"name": column.name, "type": kind, "nullable": column.nullable, "metadata": {}}),
            "position": place,
            "nullable": column.nullable,
        }
        if column.comment:
            made["comment"] = column.comment
        if isinstance(kind, str) and kind.startswith("decimal("):
            made["type_precision"], made["type_scale"] = (int(part) for part in kind[8:-1].split(","))
        found.append(made)
    return found
