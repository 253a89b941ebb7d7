"""A stub of Unity Catalog's open REST interface, made from its description (OpenAPI, `api/all.yaml` of version 0.4:
tables and schemas): no registry that is reachable here serves the server itself. It
refuses what the description does not allow, and knows entries in memory only.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from tests.support.http_stub import StubHandler, serving

ROOT = "/api/2.1/unity-catalog"
_NEEDED = {"name", "catalog_name", "schema_name", "table_type", "columns", "data_source_format", "storage_location"}
_KNOWN = _NEEDED | {"comment", "properties", "view_definition", "view_dependencies"}
_COLUMN = {
    "name", "type_text", "type_json", "type_name", "type_precision", "type_scale", "type_interval_type", "position",
    "comment", "nullable", "partition_index",
}  # fmt: skip
_TYPES = {
    "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING",
    "BINARY", "DECIMAL", "INTERVAL", "ARRAY", "STRUCT", "MAP", "CHAR", "NULL", "USER_DEFINED_TYPE", "TABLE_TYPE",
    "VARIANT",
}  # fmt: skip


class UnityStub:
    """`tables` and `schemas` by full name. With a `token` every request must carry it; while `failing` is a status,
    that is every answer.
    """

    def __init__(self, *, token: str = "") -> None:
        self.token = token
        self.failing = 0
        self.catalogs = {"shop"}
        self.schemas: set[str] = set()
        self.tables: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.uri = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = path.rpartition("/")[2]
        if re.fullmatch(r"/schemas/[^/]+", path) and method == "GET":
            return (200, {"full_name": name}) if name in self.schemas else _missing(name)
        if path == "/schemas" and method == "POST":
            if body["catalog_name"] not in self.catalogs:
                return _missing(body["catalog_name"])
            self.schemas.add(f"{body['catalog_name']}.{body['name']}")
            return 200, body
        if path == "/tables" and method == "POST":
            return self._create(body)
        if re.fullmatch(r"/tables/[^/]+", path) and method in ("GET", "DELETE"):
            if name not in self.tables:
                return _missing(name)
            return 200, self.tables[name] if method == "GET" else self.tables.pop(name) and {}
        return 405, {"error_code": "METHOD_NOT_ALLOWED", "message": f"{method} {path}"}

    def _create(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wrong = (body.keys() - _KNOWN) | (_NEEDED - body.keys())
        wrong |= {name for column in body["columns"] for name in column.keys() - _COLUMN}
        wrong |= {column["type_name"] for column in body["columns"]} - _TYPES
        if wrong or body["table_type"] != "EXTERNAL" or body["data_source_format"] != "DELTA":
            return 400, {"error_code": "INVALID_ARGUMENT", "message": f"not understood: {sorted(wrong)}"}
        schema = f"{body['catalog_name']}.{body['schema_name']}"
        name = f"{schema}.{body['name']}"
        if schema not in self.schemas:
            return _missing(schema)
        if name in self.tables:
            return 409, {"error_code": "TABLE_ALREADY_EXISTS", "message": f"{name} is there"}
        self.tables[name] = {**body, "table_id": str(uuid.uuid4()), "owner": None, "created_at": 1, "updated_at": 1}
        return 200, self.tables[name]


def _missing(name: str) -> tuple[int, dict[str, Any]]:
    return 404, {"error_code": "NOT_FOUND", "message": f"there is no {name}"}


@contextmanager
def unity_catalog(*, token: str = "") -> Iterator[UnityStub]:
    stub = UnityStub(token=token)

    class Handler(StubHandler):
        def _do(self) -> None:
            body = json.loads(self.content() or b"{}")
            path = self.path.removeprefix(ROOT).rstrip("/")
            stub.requests.append(f"{self.command} {path}")
            status, answer = stub.failing, {"error_code": "INTERNAL", "message": "asked to fail"}
            if not status:
                status, answer = stub.answer(self.command, path, body)
            if stub.token and self.headers.get("Authorization") != f"Bearer {stub.token}":
                status, answer = 401, {"error_code": "UNAUTHENTICATED", "message": "no token"}
            self.answer(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

        do_GET = do_POST = do_DELETE = do_PATCH = _do

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        stub.uri = f"http://127.0.0.1:{server.server_address[1]}"
        yield stub
