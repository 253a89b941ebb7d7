"""Names, values and types as Spark SQL text.

Owns that nothing of the source is read as SQL: names are quoted identifiers, and values are digits.
Pure text.
"""

from collections.abc import Sequence


def quote(name: str) -> str:
    """`name` as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """`value` as a string that has nothing to escape: the digits of its bytes. Spark makes it an
    ordinary literal before it looks for files to skip.
    """
    return f"CAST({binary_literal(value.encode())} AS STRING)"


def escaped(value: str) -> str:
    """`value` as a string where the grammar takes no expression, for names and values of properties."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def binary_literal(value: bytes) -> str:
    """`value` as a BINARY."""
    return f"X'{value.hex()}'"


def spark_ddl(columns: Sequence[tuple[str, str]]) -> str:
    """A schema in Spark's own spelling."""
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)
