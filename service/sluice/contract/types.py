"""Which lake type holds values of which PostgreSQL type: one pure table, used by ingest, by the
applier and by docs/types.md.

Invariant: a value is exact or it is marked. A type is *typed* where the lake type holds every value
or the few others go to `_sluice_special` as the server's own text; everything else is that text.
Nothing is rounded, clamped or replaced by NULL. (PostgreSQL: Data Types. Delta protocol: Primitive
Types.)
"""

import re
from dataclasses import dataclass

MAX_DECIMAL_PRECISION = 38
_NUMERIC = 1700
_VARHDRSZ = 4


@dataclass(frozen=True, slots=True)
class LakeType:
    """How the values of one column are stored.

    `sql` is the Spark and Delta spelling (`bigint`, `decimal(12,2)`, `array<int>`). `family` names
    the reader in `sluice.ingest.encode.types`. `special` says which values do not fit and are
    marked instead; empty when every value fits.
    """

    sql: str
    family: str
    special: str = ""

    @property
    def is_array(self) -> bool:
        return self.sql.startswith("array<")

    @property
    def element(self) -> str:
        """Spark spelling of the array's element."""
        return self.sql[6:-1]


_DATES = "infinity, -infinity, years before 0001 or after 9999"
_ARRAYS = "more than one dimension, a lower bound other than 1, elements that the element type cannot hold"

TEXT = LakeType("string", "text")

NAMES = frozenset(
    (
        *(24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191, 6490, 1033),
        *(1008, 2207, 2208, 2209, 2210, 2211, 3735, 3770, 4090, 4097, 4192, 6491, 1034),
    )
)
"""Types whose text is made from the names of other objects, and their arrays: regproc, regprocedure, regoper,
regoperator, regclass, regtype, regconfig, regdictionary, regnamespace, regrole, regcollation, regdatabase, aclitem.
"""

SCALARS: dict[int, tuple[str, LakeType]] = {
    16: ("boolean", LakeType("boolean", "boolean")),
    17: ("bytea", LakeType("binary", "bytea")),
    18: ('"char"', TEXT),
    19: ("name", TEXT),
    20: ("bigint", LakeType("bigint", "integer")),
    21: ("smallint", LakeType("smallint", "integer")),
    23: ("integer", LakeType("int", "integer")),
    25: ("text", TEXT),
    26: ("oid", LakeType("bigint", "integer")),
    700: ("real", LakeType("float", "float")),
    701: ("double precision", LakeType("double", "float")),
    1042: ("character(n)", TEXT),
    1043: ("character varying(n)", TEXT),
    1082: ("date", LakeType("date", "date", _DATES)),
    1114: ("timestamp", LakeType("timestamp_ntz", "timestamp", _DATES)),
    1184: ("timestamptz", LakeType("timestamp", "timestamptz", _DATES)),
}
"""Type OIDs that never change (pg_type.dat), apart from numeric, which depends on its typmod."""

ARRAYS: dict[int, int] = {
    1000: 16,
    1001: 17,
    1002: 18,
    1003: 19,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1028: 26,
    1115: 1114,
    1182: 1082,
    1185: 1184,
    1231: 1700,
}
"""Array type OID to element type OID, for elements that are typed."""

TEXT_NAMES: tuple[str, ...] = (
    "uuid",
    "json",
    "jsonb",
    "jsonpath",
    "xml",
    "money",
    "interval",
    "time",
    "timetz",
    "bit",
    "bit varying",
    "inet",
    "cidr",
    "macaddr",
    "macaddr8",
    "point",
    "line",
    "lseg",
    "box",
    "path",
    "polygon",
    "circle",
    "tsvector",
    "tsquery",
    "pg_lsn",
    "pg_snapshot",
    "txid_snapshot",
    "xid",
    "xid8",
    "cid",
    "tid",
    "regclass and the other reg types",
    "int4range and the other ranges",
    "int4multirange and the other multiranges",
    "int2vector",
    "oidvector",
    "refcursor",
    "aclitem",
    "enums",
    "composites",
    "arrays of any of these",
    "types of extensions (hstore, citext, ltree, vector, geometry, ...)",
)
"""Types kept as the server's own text, named for the documentation; any type not listed above is
kept so too.
"""


def numeric(typmod: int) -> LakeType:
    """numeric(p,s) as decimal where 38 digits are enough, else text.

    A typmod of -1 (no declared precision) is text: its values have no common scale. A negative
    scale adds zeros to the left of the point, a scale above the precision (15 and later) adds them
    to the right; both are folded into the decimal's own precision and scale.
    """
    if typmod < _VARHDRSZ:
        return TEXT
    precision, scale = (typmod - _VARHDRSZ) >> 16 & 0xFFFF, declared_scale(typmod)
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    if precision > MAX_DECIMAL_PRECISION:
        return TEXT
    return LakeType(f"decimal({precision},{scale})", "numeric", "NaN, Infinity, -Infinity")


def declared_scale(typmod: int) -> int:
    """The scale of a numeric column that was declared with one; it may be negative."""
    scale = (typmod - _VARHDRSZ) & 0x7FF
    return scale - 0x800 if scale >= 0x400 else scale


def lake_type(type_oid: int, typmod: int) -> LakeType:
    """The lake type of a column whose (base) type has this OID and typmod. Total: what is not known
    is text.

    Resolve domains to their base type and typmod before calling: the stream shows only the domain.
    """
    if type_oid == _NUMERIC:
        return numeric(typmod)
    if type_oid in SCALARS:
        return SCALARS[type_oid][1]
    if type_oid in ARRAYS:
        element = lake_type(ARRAYS[type_oid], typmod)
        if element is TEXT and ARRAYS[type_oid] == _NUMERIC:
            return LakeType("array<string>", "text[]", _ARRAYS)
        return LakeType(f"array<{element.sql}>", f"{element.family}[]", _ARRAYS)
    return TEXT


_BINARY_FORMS: dict[int, str] = {
    16: "boolean",
    17: "bytea",
    19: "text",
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    26: "oid",
    114: "text",
    700: "float4",
    701: "float8",
    1042: "text",
    1043: "text",
    1082: "date",
    1114: "timestamp",
    1184: "timestamptz",
    2950: "uuid",
    3802: "jsonb",
}


def binary_form(type_oid: int, typmod: int, *, is_enum: bool) -> str:
    """How a column of this (base) type is read when the server sends it in binary form; empty where
    that cannot be done exactly.

    Arrays, composites and ranges have none: whether the server can send one at all depends on the
    types within. Nor has numeric without a precision, of which the lake keeps the text.
    """
    if is_enum:
        return "text"
    if type_oid == _NUMERIC:
        return "numeric" if numeric(typmod) is not TEXT else ""
    return _BINARY_FORMS.get(type_oid, "")


SPELLED_FORMS = frozenset(["text", "uuid", "jsonb", "boolean", "int2", "int4", "int8", "oid", "bytea"])
"""Binary forms from which the text can be made that the server would print. Of the others it depends on the
server's own code, to the last digit.
"""

_DECIMAL = re.compile(r"\Adecimal\((\d+),(\d+)\)\Z")


def decimal_parts(sql: str) -> tuple[int, int] | None:
    """(precision, scale) of a decimal's spelling, None for any other type."""
    match = _DECIMAL.match(sql)
    return (int(match[1]), int(match[2])) if match else None
