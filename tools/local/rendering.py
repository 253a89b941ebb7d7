"""Arrow values of a lake table as the text PostgreSQL would print for them.

Written without a look at Sluice's own decoder, so that the comparison that uses it is a second
opinion. Exact or an error: nothing is rounded or normalised on the way. Expects the session
settings of `compare`. (PostgreSQL: Data Types, the input and output forms of each.)
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FLOAT_DIGITS = {64: 15, 32: 6}
"""DBL_DIG and FLT_DIG: from this decimal exponent on PostgreSQL prints an exponent."""
_MUST_QUOTE = frozenset('"\\{}, \t\n\r\v\f')


def postgres_texts(values: pa.Array) -> list[str | None]:
    """The output function's text of each value, None for NULL. Raises TypeError for an Arrow type
    that no lake type becomes.
    """
    kind = values.type
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_integer(kind)
    ):
        return _listed(values.cast(pa.large_string()))
    if pa.types.is_boolean(kind):
        return [None if value is None else "t" if value else "f" for value in values.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if value is None else float_text(value, bits=kind.bit_width) for value in values.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in values.to_pylist()]
    if pa.types.is_date(kind):
        return _listed(values.cast(pa.large_string()))
    if pa.types.is_timestamp(kind):
        return _timestamp_texts(values)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return [None if value is None else "\\x" + value.hex() for value in values.to_pylist()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _array_texts(values)
    raise TypeError(f"no PostgreSQL text for Arrow type {kind}")


def float_text(value: float, *, bits: int) -> str:
    """The shortest digits that read back, in PostgreSQL's notation.

    Where the neighbours are just as far, float8out prints one digit more than that: give the
    server's text to `same_float` before comparing.
    """
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    exact = np.float64(value) if bits == 64 else np.float32(value)
    shortest = np.format_float_scientific(exact, unique=True, trim="-", exp_digits=2)
    mantissa, _, exponent_text = shortest.partition("e")
    if exact == 0 or -4 <= int(exponent_text) < _FLOAT_DIGITS[bits]:
        return np.format_float_positional(exact, unique=True, trim="-")
    return f"{mantissa}e{exponent_text}"


def same_float(text: str | None, *, bits: int) -> str | None:
    """The server's text of a float, or of a one-dimensional array of floats, with each number as
    `float_text` spells it.
    """
    if text is None or text == "NULL":
        return text
    if text.startswith("{") and not text.startswith("{{"):
        elements = text[1:-1].split(",") if text != "{}" else []
        return "{" + ",".join(str(same_float(element, bits=bits)) for element in elements) + "}"
    return text if text.startswith(("{", "[")) else float_text(float(text), bits=bits)


def array_text(elements: Iterable[str | None]) -> str:
    """array_out for a one-dimensional array, given its elements' texts."""
    return "{" + ",".join("NULL" if element is None else _array_element(element) for element in elements) + "}"


def _array_element(text: str) -> str:
    if text and text.upper() != "NULL" and _MUST_QUOTE.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array_texts(values: pa.Array) -> list[str | None]:
    elements = postgres_texts(values.flatten())
    texts: list[str | None] = []
    at = 0
    for length in pc.list_value_length(values).to_pylist():
        if length is None:
            texts.append(None)
            continue
        texts.append(array_text(elements[at : at + length]))
        at += length
    return texts


def _timestamp_texts(values: pa.Array) -> list[str | None]:
    zone = values.type.tz
    if values.type.unit != "us" or zone not in (None, "UTC", "+00:00", "Etc/UTC"):
        raise TypeError(f"no PostgreSQL text for Arrow type {values.type}")
    texts = values.cast(pa.timestamp("us")).cast(pa.large_string())
    texts = pc.replace_substring_regex(texts, pattern=r"\.0+$", replacement="")
    texts = pc.replace_substring_regex(texts, pattern=r"(\.\d*[1-9])0+$", replacement=r"\1")
    return _listed(
        texts
        if zone is None
        else pc.binary_join_element_wise(texts, pa.scalar("+00", pa.large_string()), pa.scalar("", pa.large_string()))
    )


def _listed(texts: pa.Array) -> list[str | None]:
    listed: list[str | None] = texts.to_pylist()
    return listed
