"""The spool can read every family that the tables of types name."""

import pyarrow as pa
import pytest

from sluice.contract.types import ARRAYS, SCALARS, lake_type
from sluice.ingest.encode.types.families import arrow_type
from tests.support.spooled import inserted, table

NUMERIC_12_2 = (12 << 16 | 2) + 4


@pytest.mark.parametrize("type_oid", [*SCALARS, *ARRAYS, 1700, 2950])
@pytest.mark.parametrize("typmod", [-1, NUMERIC_12_2])
def test_every_type_has_an_arrow_type_and_a_reader(type_oid: int, typmod: int) -> None:
    lake = lake_type(type_oid, typmod)
    plain = {
        "boolean": b"t",
        "bytea": b"\\x00",
        "date": b"2024-01-01",
        "timestamp": b"2024-01-01 00:00:00",
        "timestamptz": b"2024-01-01 00:00:00+00",
    }
    text = plain.get(lake.family.removesuffix("[]"), b"1")
    if lake.is_array:
        text = b'{"' + text.replace(b"\\", b"\\\\") + b'"}'
    column = inserted(table(("v", type_oid, typmod)), [text], [None]).batch.column("v")
    assert column.type == arrow_type(lake)
    assert pa.types.is_list(column.type) == lake.is_array
    assert [value.is_valid for value in column] == [True, False]
