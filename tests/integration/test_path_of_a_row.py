"""docs/architecture.md names every module that has a row in hand between the socket and the acknowledgement."""

import re
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.ingesting import IngestPipeline

ROOT = Path(__file__).parents[2]
CODE = f"{ROOT}/service/sluice/"
VALUE = b"a value that no other row has"
MOST_STEPS = 15
DEEPEST = 4
"""Of objects in objects, from what a function is given."""


def test_the_page_names_the_modules_that_have_a_row_in_hand(pipeline: IngestPipeline) -> None:
    section = _section("From the socket to the acknowledgement")
    linked = set(re.findall(r"\(\.\./service/sluice/([a-z_/.]+)\)", section))
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY, t text, n numeric(10,2))")
    pipeline.run()
    entered, holding = _follow(pipeline, f"INSERT INTO a VALUES (1, '{VALUE.decode()}', 1.25)")
    assert {name for name in holding if not any(name.startswith(link) for link in linked)} == set()
    assert {link for link in linked if not any(name.startswith(link) for name in entered)} == set()


def test_the_way_to_the_acknowledgement_has_at_most_fifteen_steps_and_to_the_lake_ten() -> None:
    steps = [
        len(re.findall(r"^\d+\. \*\*", _section(title), re.MULTILINE))
        for title in ("From the socket to the acknowledgement", "From the manifest to the lake")
    ]
    assert 5 < steps[0] <= MOST_STEPS
    assert 5 < steps[1] <= 10


def _section(title: str) -> str:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return page.split(f"\n### {title}\n")[1].split("\n### ")[0]


def _follow(pipeline: IngestPipeline, statement: str) -> tuple[set[str], set[str]]:
    """The modules that were entered while the row of `statement` was carried, and those of them that were given
    its bytes or gave them back.
    """
    following = threading.Event()
    entered: set[str] = set()
    holding: set[str] = set()

    def look(frame: FrameType, event: str, value: Any) -> None:
        name = frame.f_code.co_filename.removeprefix(CODE)
        if not following.is_set() or name == frame.f_code.co_filename or name in holding:
            return
        entered.add(name)
        code = frame.f_code
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals[key] for key in given if key != "self"] if event == "call" else [value]
        if event in ("call", "return") and any(_has(one) for one in values):
            holding.add(name)

    threading.setprofile(look)
    try:
        with pipeline.running() as running:
            running.wait_until(lambda: running.ingest is not None and running.ingest.status.connected)
            following.set()
            pipeline.database.execute(statement)
            running.wait_until(lambda: bool(pipeline.commits()))
            running.wait_until(lambda: pipeline.confirmed() >= pipeline.commits()[-1])
            following.clear()
    finally:
        threading.setprofile(None)
    return entered, holding


def _has(value: Any, depth: int = 0) -> bool:
    match value:
        case bytes() | bytearray():
            return VALUE in value
        case str():
            return VALUE.decode() in value
        case memoryview():
            return VALUE in bytes(value)
        case np.ndarray():
            return value.dtype != object and VALUE in value.tobytes()
        case pa.Buffer():
            return VALUE in value.to_pybytes()
        case pa.Array():
            return any(buffer is not None and VALUE in buffer.to_pybytes() for buffer in value.buffers())
        case pa.RecordBatch() | pa.Table():
            return any(_has(column) for column in value.columns)
        case pa.ChunkedArray():
            return any(_has(chunk) for chunk in value.chunks)
    return depth < DEEPEST and any(_has(part, depth + 1) for part in _parts(value))


def _parts(value: Any) -> Iterable[Any]:
    match value:
        case list() | tuple() | deque():
            return list(value)
        case dict():
            return list(value.values())
    if not type(value).__module__.startswith("sluice."):
        return ()
    slots = [name for base in type(value).__mro__ for name in base.__dict__.get("__slots__", ())]
    return [getattr(value, name, None) for name in (*getattr(value, "__dict__", {}), *slots)]
