"""What the catalog of the source says of a table for people: comments, keys, labels of enumerations. No row depends on
it.

Invariant: it is bounded, whatever somebody wrote into a comment, and has nothing of a column that a rule keeps out of
the lake, nor the labels of one that a rule changes: they are its values. (PostgreSQL: COMMENT; pg_constraint; pg_enum.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluice.contract.schema import TableSchema

LONGEST_TABLE_COMMENT = 4000
"""Characters. Catalogs such as Hive's keep no more."""
LONGEST_COMMENT = 1000
"""Characters, of a column: each commit of columns repeats them all."""
MOST_COMMENTS = 100_000
"""Characters, of all columns of a table."""
MOST_LABELS = 100
"""Of one column. One with more has none here."""
MOST_FOREIGN_KEYS = 50
"""Of one table."""
_CUT = "…"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """`columns` are attnums, and `references` the names of the columns in `table` (schema.table)."""

    name: str
    columns: tuple[int, ...]
    table: str
    references: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """`comments` and `labels` are those of columns, by attnum. `primary_key` has attnums in the key's order; None: it
    is what identifies rows, in the order of columns.
    """

    comment: str = ""
    primary_key: tuple[int, ...] | None = None
    foreign_keys: tuple[ForeignKey, ...] = ()
    comments: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def under(self, schema: TableSchema) -> "Description":
        """What of it may be stored of a table of `schema`, within bounds."""
        columns = {column.attnum: column for column in schema.columns}
        comments: dict[int, str] = {}
        left = MOST_COMMENTS
        for attnum, comment in sorted(self.comments.items()):
            said = cut(comment, min(LONGEST_COMMENT, left))
            if attnum in columns and said:
                comments[attnum] = said
                left -= len(said)
        labels = {
            attnum: labels
            for attnum, labels in self.labels.items()
            if attnum in columns and columns[attnum].rule is None and len(labels) <= MOST_LABELS
        }
        keyed = tuple(column.attnum for column in schema.key_columns)
        return replace(
            self,
            comment=cut(self.comment, LONGEST_TABLE_COMMENT),
            primary_key=None if self.primary_key == keyed else self.primary_key,
            foreign_keys=tuple(key for key in self.foreign_keys if columns.keys() >= set(key.columns))[
                :MOST_FOREIGN_KEYS
            ],
            comments=comments,
            labels=labels,
        )


NOTHING = Description()


def cut(text: str, most: int) -> str:
    """At most so many characters of `text`; the last one says that there were more."""
    return text if len(text) <= most else text[: max(0, most - 1)] + _CUT[:most]
