"""SQL over the lake of the local stack, read by delta-rs: what is in the tables, read by an engine
that did not write them.
"""

import json
import os
import subprocess
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tools.local.binaries import LocalServerError
from tools.stack.members import sluice_command, sluice_environment, store_options
from tools.stack.stack import Stack


def tables(stack: Stack) -> list[dict[str, Any]]:
    """What `sluice tables --json` says. Raises LocalServerError."""
    asked = subprocess.run(
        sluice_command("tables", "--json"),
        env=sluice_environment(stack.layout, os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        raise LocalServerError(
            f"the tables are not known: {asked.stderr.strip().splitlines()[-1:] or asked.returncode}; is the stack up?"
        )
    found: list[dict[str, Any]] = json.loads(asked.stdout)["tables"]
    return found


def ask(stack: Stack, sql: str) -> pa.Table:
    """The answer. Tables are called as at the source; one of another schema than public as
    schema_table. Raises LocalServerError.
    """
    builder, known = QueryBuilder(), []
    for table in tables(stack):
        name = table["table"] if table["schema"] == "public" else f"{table['schema']}_{table['table']}"
        try:
            builder = builder.register(name, DeltaTable(table["path"], storage_options=store_options(stack.layout)))
        except TableNotFoundError:
            continue
        known.append(name)
    try:
        return pa.table(builder.execute(sql).read_all())
    except Exception as error:
        raise LocalServerError(
            f"the lake did not answer: {error}; its tables so far: {', '.join(known) or 'none'}"
        ) from error
