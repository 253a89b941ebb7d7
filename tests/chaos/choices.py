"""What a seeded story chooses from: fault points, errors, messages to cut at, changes of the catalog."""

TAGS = "BCSEAcbPpKrRIUDTk"

POINTS = (
    "batch.received",
    "decode.before",
    "build.before",
    "catalog.asked",
    "unit.cut.before",
    "unit.submit.before",
    "segment.put.before",
    "segment.put.after",
    "store.put.before",
    "store.put.after",
    "commit.before",
    "commit.after",
    "manifest.append.before",
    "manifest.append.after",
    "store.create.before",
    "store.create.after",
    "receipt.before",
    "status.before",
    "status.after",
    "snapshot.locked",
    "snapshot.read",
    "snapshot.final.before",
    "snapshot.final.after",
)
ERRORS = (
    "SourceUnavailable",
    "StoreUnavailable",
    "StoreRefused",
    "DecodeError",
    "OSError",
    "MemoryError",
    "UnsupportedChange",
    "ValueError",
)


CATALOG: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "column added and dropped",
        (
            "ALTER TABLE w_text ADD COLUMN passing_{number} int DEFAULT 3",
            "ALTER TABLE w_text DROP COLUMN passing_{number}",
        ),
    ),
    ("column added", ("ALTER TABLE w_pair ADD COLUMN added_{number} text DEFAULT 'constant'",)),
    ("column added with a rewrite", ("ALTER TABLE w_uuid ADD COLUMN added_{number} float8 DEFAULT random()",)),
    (
        "column renamed and back",
        (
            "ALTER TABLE w_uuid RENAME COLUMN day TO day_{number}",
            "ALTER TABLE w_uuid RENAME COLUMN day_{number} TO day",
        ),
    ),
    ("column widened", ("ALTER TABLE w_full ALTER COLUMN n TYPE bigint",)),
    (
        "publish toggled",
        (
            "ALTER PUBLICATION {publication} SET (publish = 'insert')",
            "ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
        ),
    ),
    ("table rewritten", ("VACUUM FULL w_index",)),
    ("table truncated", ("TRUNCATE w_bag, w_append",)),
    (
        "table created",
        (
            "CREATE TABLE made_{number} (id int PRIMARY KEY, t text)",
            "INSERT INTO made_{number} SELECT i, 't' FROM generate_series(1, 20) i",
            "UPDATE made_{number} SET t = 'u' WHERE id < 5",
        ),
    ),
)
"""What happens to the catalog, by the name that is counted."""
