"""Column rules applied to rows, before anything of them is written: to all values of a column at once where that can
be done. `contract.column_values` defines what becomes of one. Pure.

Invariant: every value that is encoded comes through here, as the stream sent it, in text or binary form, or as a
COPY read it. The values of a column that is excluded are not looked at. A value whose text cannot be made exactly is
refused by name.
"""

from dataclasses import replace

import numpy as np

from sluice.contract.column_values import HashKeys, hasher
from sluice.contract.schema import ColumnRule, RuleKind, TableSchema
from sluice.errors import DecodeError, UnsupportedChange
from sluice.ingest.encode.types.families import spelled
from sluice.ingest.encode.views import PADDING, Texts
from sluice.protocol.tuples import RowColumns

_HASH_BYTES = 64
_UTF8_BYTES = 4
"""The most that a character takes."""


def stored_rows(rows: RowColumns, schema: TableSchema) -> RowColumns:
    """The columns of `schema` that are stored, of rows as the stream sends them. Raises DecodeError for rows of
    another shape.
    """
    sent = len(schema.columns) + len(schema.excluded)
    if len(rows.new) != sent:
        raise DecodeError(
            f"{schema.qualified_name}: rows have {len(rows.new)} columns, schema version {schema.version} has {sent}"
        )
    if not schema.excluded:
        return rows
    gone = {one.place for one in schema.excluded}
    kept = [place for place in range(sent) if place not in gone]
    old = None if rows.old is None else tuple(rows.old[place] for place in kept)
    return replace(rows, new=tuple(rows.new[place] for place in kept), old=old)


def ruled(texts: Texts, rule: ColumnRule, keys: HashKeys, *, binary_form: str | None) -> Texts:
    """What `rule` makes of values, which are text or have the `binary_form`. Raises UnsupportedChange."""
    if rule.kind is RuleKind.MASK:
        return _masked(texts, rule.mask.encode())
    if binary_form is not None:
        texts = _text_of(texts, binary_form)
    return _truncated(texts, rule.length) if rule.kind is RuleKind.TRUNCATE else _hashed(texts, rule, keys)


def _masked(texts: Texts, mask: bytes) -> Texts:
    count = len(texts)
    length = np.where(texts.present, np.int32(len(mask)), np.int32(0))
    return Texts(mask + PADDING, np.zeros(count, np.int64), length, texts.present, texts.where)


def _truncated(texts: Texts, characters: int) -> Texts:
    """The same bytes, of which less is said to be the value."""
    length = texts.length.copy()
    content = memoryview(texts.raw)
    for row in np.flatnonzero(texts.present & (texts.length > characters)).tolist():
        begin = int(texts.start[row])
        head = bytes(content[begin : begin + min(int(texts.length[row]), _UTF8_BYTES * characters)])
        length[row] = len(_first(head, characters, texts.where))
    return replace(texts, length=length)


def _first(head: bytes, characters: int, where: str) -> bytes:
    """The first characters of a text that begins with `head`, which may end within one."""
    if head.isascii():
        return head[:characters]
    begins = np.flatnonzero((np.frombuffer(head, np.uint8) & 0xC0) != 0x80)
    taken = head[: int(begins[characters])] if len(begins) > characters else head
    try:
        taken.decode()
    except UnicodeDecodeError:
        raise UnsupportedChange(
            f"{where} holds text that is not UTF-8",
            hint="this happens in databases with encoding SQL_ASCII; correct the values, then resync the table",
        ) from None
    return taken


def _hashed(texts: Texts, rule: ColumnRule, keys: HashKeys) -> Texts:
    make = hasher(keys.key(rule.key_id, texts.where))
    chosen = np.flatnonzero(texts.present)
    content = memoryview(texts.raw)
    made = bytearray()
    for begin, length in zip(texts.start[chosen].tolist(), texts.length[chosen].tolist(), strict=True):
        made += make(content[begin : begin + length])
    start = np.zeros(len(texts), np.int64)
    start[chosen] = np.arange(len(chosen)) * _HASH_BYTES
    length_of_each = np.where(texts.present, np.int32(_HASH_BYTES), np.int32(0))
    return Texts(made.hex().encode() + PADDING, start, length_of_each, texts.present, texts.where)


def _text_of(texts: Texts, form: str) -> Texts:
    text = spelled(texts, form) if form else None
    if text is None:
        raise UnsupportedChange(
            f"{texts.where}: its values arrive in binary form, from which the text that its column rule needs cannot "
            "be made exactly",
            hint="set source.binary to false, or exclude or mask the column; then resync the table",
        )
    return text
