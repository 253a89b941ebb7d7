"""Which tables `source.tables` selects."""

from fnmatch import fnmatchcase


def matches(patterns: tuple[str, ...], schema_name: str, table_name: str) -> bool:
    """Whether one of `patterns` (`public.*`, `shop.orders`) names the table; no patterns at all
    name every table.
    """
    name = f"{schema_name}.{table_name}"
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
