"""Rows of a lake table in the form that both sides hash: the texts that the source makes of the same
rows with the expressions of `sluice.source.row_hashes`.

Owns that two rows have one form exactly when they are equal as the lake stores rows, marked values
included. A value that is typed and marked as well equals nothing. A null has the empty form, which
no value has.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.row_form import FLOATS, SEPARATOR, is_hashed
from sluice.contract.schema import ColumnSchema
from sluice.contract.types import decimal_parts
from sluice_spark.verify.hashing import Hashes, hash_texts

_TEXT = pa.large_string()
_BOTH = "\0both typed and marked"
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")
_FLOAT_OIDS = {"float": 700, "double": 701}
_QUOTED = r'^$|^(?i:null)$|["\\{},\s\x0b]'


class Canonical:
    """The forms of rows with `columns`. `as_hex` says that the server's encoding is not UTF-8: it then
    hashes the hexadecimal digits of the UTF-8 form. With `keys` 0.0 and -0.0 are the same value.
    """

    def __init__(self, columns: Sequence[ColumnSchema], *, seed: int, as_hex: bool, keys: bool = False) -> None:
        self._columns = tuple(columns)
        self._keys = keys
        self._seed = seed
        self._as_hex = as_hex

    def hashes(self, rows: pa.Table, names: Mapping[str, str] | None = None) -> Hashes:
        """One hash for each row. `names` says under which name `rows` has a column, and its marked
        texts under the name and SPECIAL_SUFFIX; left out, they are in the envelope's map.
        """
        forms = [self._form(rows, column, names) for column in self._columns]
        joined = _joined([form.fill_null("") for form in forms], SEPARATOR) if forms else pa.array([""] * len(rows))
        return self._hashed(joined)

    def texts(self, rows: pa.Table) -> list[list[str | None]]:
        """The columns' texts as PostgreSQL reads them, column by column."""
        return [
            _readable(whole(rows[column.name]), column, _marked(rows, column)).to_pylist() for column in self._columns
        ]

    def _form(self, rows: pa.Table, column: ColumnSchema, names: Mapping[str, str] | None) -> pa.Array:
        if names is None:
            values, marked = whole(rows[column.name]), _marked(rows, column)
        else:
            values = whole(rows[names[column.name]])
            special = names[column.name] + SPECIAL_SUFFIX
            marked = whole(rows[special]).cast(_TEXT) if special in rows.column_names else None
        if self._keys and pa.types.is_floating(values.type):
            values = pc.add(values, pa.scalar(0.0, values.type))
        form = _with_marked(_form(values, column), marked)
        if not is_hashed(column.lake):
            return form
        numbers = pa.array(self._hashed(form.fill_null("")).view(np.int64))
        return pc.if_else(form.is_valid(), numbers.cast(_TEXT), pa.scalar(None, _TEXT))

    def _hashed(self, texts: pa.Array) -> Hashes:
        if self._as_hex:
            texts = _hex(texts.cast(pa.large_binary()))
        return hash_texts(texts, self._seed)


SPECIAL_SUFFIX = "\0special"


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array."""
    if isinstance(column, pa.Array):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _joined(parts: Sequence[pa.Array], separator: str) -> pa.Array:
    return pc.binary_join_element_wise(*(part.cast(_TEXT) for part in parts), pa.scalar(separator, _TEXT))


def _form(values: pa.Array, column: ColumnSchema) -> pa.Array:
    lake = column.lake
    if lake.is_array:
        return _float_arrays(values, lake.element) if lake.element in FLOATS else _arrays(values)
    return _float_digits(values) if pa.types.is_floating(values.type) else plain_texts(values)


def _readable(values: pa.Array, column: ColumnSchema, marked: pa.Array | None) -> pa.Array:
    """Text that means the value to PostgreSQL, though it might have printed another."""
    texts = (
        pa.array([None if value is None else repr(value) for value in values.to_pylist()], _TEXT)
        if (pa.types.is_floating(values.type))
        else _arrays(values)
        if column.lake.is_array
        else plain_texts(values)
    )
    return _with_marked(texts, marked)


def plain_texts(values: pa.Array) -> pa.Array:
    """What the types' output functions print, of types with one text for each value."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.if_else(values, pa.scalar("t", _TEXT), pa.scalar("f", _TEXT))
    if pa.types.is_decimal(kind):
        return _decimals(values)
    if pa.types.is_timestamp(kind):
        return _timestamps(values)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_join_element_wise(
            pa.scalar("\\x", _TEXT), _hex(values.cast(pa.large_binary())), pa.scalar("", _TEXT)
        )
    if pa.types.is_floating(kind):
        return _float_digits(values)
    return values.cast(_TEXT)


def _decimals(values: pa.Array) -> pa.Array:
    parts = decimal_parts(f"decimal({values.type.precision},{values.type.scale})")
    assert parts is not None
    scale = parts[1]
    if not scale:
        return values.cast(_TEXT)
    # The same bytes without a scale: Arrow spells small fractions with an exponent.
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset)
    digits = unscaled.cast(_TEXT)
    negative = pc.starts_with(digits, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    return pc.binary_join_element_wise(
        pc.if_else(negative, pa.scalar("-", _TEXT), pa.scalar("", _TEXT)),
        pc.utf8_slice_codeunits(digits, 0, -scale),
        pa.scalar(".", _TEXT),
        pc.utf8_slice_codeunits(digits, -scale),
        pa.scalar("", _TEXT),
    )


def _timestamps(values: pa.Array) -> pa.Array:
    zone = values.type.tz
    texts = values.cast(pa.timestamp("us", zone)).cast(pa.timestamp("us")).cast(_TEXT)
    texts = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return texts if zone is None else pc.binary_join_element_wise(texts, pa.scalar("+00", _TEXT), pa.scalar("", _TEXT))


def _hex(values: pa.Array) -> pa.Array:
    """The digits of binary values (large)."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + count + 1]
    data = values.buffers()[2]
    bytes_of = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    digits = _HEX[bytes_of[offsets[0] : offsets[-1]]]
    moved = (offsets - offsets[0]) * 2
    valid = pc.is_valid(values)
    return pc.if_else(
        valid,
        pa.Array.from_buffers(_TEXT, count, [None, pa.py_buffer(moved.tobytes()), pa.py_buffer(digits.tobytes())]),
        pa.scalar(None, _TEXT),
    )


def _big_endian(values: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of floats, one row each, as float8send and float4send write them. Every NaN is one."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).copy()
    numbers[np.isnan(numbers)] = np.nan
    swapped = numbers.byteswap()
    rows: npt.NDArray[np.uint8] = swapped.view(np.uint8).reshape(len(numbers), numbers.itemsize)
    return rows


def _float_digits(values: pa.Array) -> pa.Array:
    rows = _big_endian(values)
    width = rows.shape[1] * 2 if len(values) else 16
    digits = (
        pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(_HEX[rows.ravel()].tobytes())])
        .cast(pa.large_binary())
        .cast(_TEXT)
    )
    digits = pc.if_else(pc.is_nan(values), pa.scalar("NaN", _TEXT), digits)
    return pc.if_else(values.is_valid(), digits, pa.scalar(None, _TEXT))


def _float_arrays(values: pa.Array, element: str) -> pa.Array:
    """array_send's bytes without its flags in hexadecimal: text of a float is not the same in every library."""
    width = 8 if element == "double" else 4
    numbers = whole_list(values)
    sent = _big_endian(numbers)
    present = numbers.is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(values).to_pylist()
    forms: list[str | None] = []
    at = 0
    for length in lengths:
        if length is None:
            forms.append(None)
            continue
        here = range(at, at + length)
        at += length
        head = (1 if length else 0).to_bytes(4, "big") + _FLOAT_OIDS[element].to_bytes(4, "big")
        if length:
            head += length.to_bytes(4, "big") + (1).to_bytes(4, "big")
        size = width.to_bytes(4, "big")
        body = b"".join(size + sent[place].tobytes() if present[place] else b"\xff\xff\xff\xff" for place in here)
        forms.append((head + body).hex())
    return pa.array(forms, _TEXT)


def whole_list(values: pa.Array) -> pa.Array:
    """The elements of lists, those of null lists left out."""
    return values.flatten()


def _arrays(values: pa.Array) -> pa.Array:
    """array_out of arrays with one dimension that begins at 1."""
    elements = whole_list(values)
    texts = (
        plain_texts(elements)
        if not pa.types.is_floating(elements.type)
        else pa.array([None if value is None else repr(value) for value in elements.to_pylist()], _TEXT)
    )
    kind = elements.type
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or (pa.types.is_timestamp(kind))
    ):
        escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        quoted = pc.binary_join_element_wise(
            pa.scalar('"', _TEXT), escaped, pa.scalar('"', _TEXT), pa.scalar("", _TEXT)
        )
        texts = pc.if_else(pc.match_substring_regex(texts, _QUOTED), quoted, texts)
    texts = texts.fill_null("NULL")
    offsets = np.concatenate(([0], np.cumsum(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False))))
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), texts)
    joined = pc.binary_join(lists, pa.scalar(",", _TEXT))
    braced = pc.binary_join_element_wise(pa.scalar("{", _TEXT), joined, pa.scalar("}", _TEXT), pa.scalar("", _TEXT))
    return pc.if_else(values.is_valid(), braced, pa.scalar(None, _TEXT))


def _marked(rows: pa.Table, column: ColumnSchema) -> pa.Array | None:
    """The texts that are marked for `column`, None when there are none."""
    if not column.lake.special or envelope.SPECIAL not in rows.column_names:
        return None
    marks = whole(rows[envelope.SPECIAL])
    if marks.null_count == len(marks):
        return None
    valid = np.flatnonzero(marks.is_valid().to_numpy(zero_copy_only=False))
    marks = marks.take(pa.array(valid))
    offsets = marks.offsets.to_numpy()
    parents = np.repeat(valid, np.diff(offsets))
    mine = pc.equal(marks.keys.slice(offsets[0], len(parents)), column.name)
    chosen = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
    if not len(chosen):
        return None
    place = np.full(len(rows), -1, np.int64)
    place[parents[chosen]] = chosen + offsets[0]
    return marks.items.cast(_TEXT).take(pa.array(place, mask=place < 0))


def _with_marked(texts: pa.Array, marked: pa.Array | None) -> pa.Array:
    if marked is None:
        return texts
    both = pc.and_(texts.is_valid(), marked.is_valid())
    return pc.if_else(both, pa.scalar(_BOTH, _TEXT), pc.coalesce(texts, marked))
