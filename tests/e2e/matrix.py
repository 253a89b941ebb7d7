"""Every built-in type of PostgreSQL with the values that are easy to get wrong, as SQL.

`HELD` has those that the column's lake type holds, `MARKED` those that it cannot hold and that must
be found as text in `_sluice_special`. Types that the lake keeps as text hold everything. What the
major under test does not have is left out.
"""

import re

from tests.support.type_matrix import DEFINITIONS as NAMED_TYPES
from tools.local.binaries import default_major

DEFINITIONS = (
    *NAMED_TYPES,
    "CREATE DOMAIN public.day AS date",
    "CREATE DOMAIN public.counts AS int[] CHECK (VALUE IS NULL OR cardinality(VALUE) < 100)",
    "CREATE TYPE public.floatrange AS RANGE (subtype = float8)",
    "CREATE TYPE public.nested AS (p public.pair, list public.pair[], day date)",
    "CREATE TABLE public.holder (id int PRIMARY KEY, note text)",
    # Servers without libxml refuse every text that is to become xml. Its bytes are the text's, so
    # that the type itself can be carried there too.
    "CREATE CAST (bytea AS xml) WITHOUT FUNCTION",
)


def _table(text: str) -> dict[str, tuple[str, ...]]:
    """A type on each line, with its values; they go on in lines that begin with a bar."""
    lines = (line.strip().partition(": ") for line in re.sub(r"\n +\|", " |", text.strip()).splitlines())
    return {name: tuple(values.split(" | ")) for name, _, values in lines}


HELD = _table("""
    boolean: true | false
    smallint: -32768 | 32767 | 0
    integer: -2147483648 | 2147483647 | 0
    bigint: -9223372036854775808 | 9223372036854775807 | 9007199254740993
    oid: 4294967295 | 0
    real: 0.1 | 'NaN' | 'Infinity' | '-Infinity' | '-0' | 0 | 3.4028235e38 | 1e-45 | -1.17549435e-38 | 16777217 | 1e6
        | 123456.7
    double precision: 0.1::float8 + 0.2 | 'NaN' | 'Infinity' | '-Infinity' | '-0' | 0 | 1.7976931348623157e308 | 5e-324
        | -2.2250738585072014e-308 | 1e15 | 1e-5 | 9007199254740993
    numeric(12,2): 1.1 | -0.004 | 9999999999.99 | -9999999999.99 | 0
    numeric(38,0): 99999999999999999999999999999999999999 | -99999999999999999999999999999999999999 | 7
    numeric(38,20): 999999999999999999.99999999999999999999 | -0.00000000000000000001 | 1
    numeric(38,38): 0.99999999999999999999999999999999999999 | -0.1
    numeric(3,-2): 12345 | -99949 | 0
    numeric(2,5): 0.00012 | -0.00099
    date: '0001-01-01' | '9999-12-31' | '1582-10-04' | '1582-10-15' | '1000-01-01' | '1969-12-31' | '2024-02-29'
    timestamp: '0001-01-01 00:00:00' | '9999-12-31 23:59:59.999999' | '1582-10-10 12:00:00.5'
        | '1899-12-31 23:59:59.999999' | '1969-12-31 23:59:59.999999' | '2024-02-29 12:00:00.000001'
    timestamp(0): '2024-12-31 23:59:59.6'
    timestamptz: '0001-01-01 00:00:00+00' | '9999-12-31 23:59:59.999999+00' | '1000-01-01 00:00:00+00'
        | '1883-11-18 12:03:58-04:56:02' | '1969-12-31 23:59:59.999999+00' | '2024-07-01 12:00:00.5+05:30'
    timestamptz(3): '2024-07-01 12:00:00.0005+05:30'
    bytea: '\\x' | '\\x00' | '\\x00ff275c0a' | decode(repeat('00ff5c78', 2000), 'hex')
    text: '' | 'NULL' | 'null' | '\\N' | ' ' | E'tab\\tnew\\nline\\r\\\\ "ü" '' \\001\\177' | 'ünï çødé 🦆 \u202e\ufeff'
        | E'e\\u0301' | E'\\u00e9' | repeat('long ü ', 30000) | '{a,b}' | '\\x00'
    varchar(20): 'v ' | '' | '20 characters exact.'
    varchar: 'any' | ''
    char(8): 'pad' | '' | '  both  ' | 'ünïçødé'
    bpchar: 'blank  ' | ''
    "char": 'c' | '' | '\\303' | '\\'
    name: 'n' | '' | repeat('n', 63)
""")
"""Typed, or text that the table of types lists by itself."""

MARKED = _table("""
    numeric(12,2): 'NaN'
    numeric(38,20): 'NaN'
    date: 'infinity' | '-infinity' | '4714-11-24 BC' | '0001-12-31 BC' | '10000-01-01' | '5874897-12-31'
    timestamp: 'infinity' | '-infinity' | '4714-11-24 00:00:00 BC' | '0001-12-31 23:59:59.999999 BC'
        | '10000-01-01 00:00:00' | '294276-12-31 23:59:59.999999'
    timestamp(0): '9999-12-31 23:59:59.6'
    timestamptz: 'infinity' | '-infinity' | '4714-11-24 00:00:00+00 BC' | '0001-01-01 00:00:00+01'
        | '9999-12-31 23:59:59.999999-00:01' | '294276-12-31 23:59:59.999999+00'
    timestamptz(3): '-infinity'
""")

TEXTS = _table("""
    numeric: 'NaN' | 'Infinity' | '-Infinity' | 1e1000 | 1e-1000 | 1.10 | 1.1 | 0.000
        | -12345678901234567890123456789012345678901234567890.5
    numeric(39,0): 999999999999999999999999999999999999999 | 'NaN'
    numeric(1000,500): 0.5 | 1e499
    uuid: 'A0EEBC999C0B4EF8BB6D6BB9BD380A11' | '00000000-0000-0000-0000-000000000000'
    json: '{"b": 1, "a":  2, "a": 3, "u": "\\u0000 \\ud800"}' | 'null' | ' 1e400 '
        | '[1.10, 123456789012345678901234567890, -0]' | '""'
    jsonb: '{"b": 1.10, "a": 2, "a": 3}' | 'null' | '[1e400, -0.0, 123456789012345678901234567890.10]' | '""' | '{}'
    jsonpath: '$.a[*] ? (@ > 1)'
    xml: '<a b="1">ü &amp; <!-- c --></a>'::text::bytea::xml
    money: '-92233720368547758.08' | '92233720368547758.07' | '0'
    interval: '1 year -2 days 03:00:00.5' | '-1 mon +1 day' | '-178000000 years' | '0' | 'infinity' | '-infinity'
        | '-00:00:00.000001' | '1 mon -30 days 720:00:00'
    interval year to month: '1 year 2 mons'
    interval second(2): '1.239'
    time: '24:00:00' | '00:00:00' | '23:59:59.999999'
    time(3): '12:00:00.0005'
    timetz: '24:00:00-15:59:59' | '12:00:00+05:30:15' | '00:00:00+15:59'
    bit(3): B'000' | B'101'
    bit varying: B'' | B'10101'
    bit varying(5): B'00'
    inet: '10.0.0.1/8' | '::1' | '::ffff:1.2.3.4/96' | '0.0.0.0/0'
    cidr: '10.0.0.0/8' | '1.2.3.4/32' | '::/0'
    macaddr: '08002b010203'
    macaddr8: '08002b0102030405'
    point: '(1.5,-0)' | '(NaN,Infinity)' | '(1e-300,5e-324)'
    line: '{1,-1,0.1}'
    lseg: '[(1,2),(3,4)]'
    box: '(3,4),(1,2)'
    path: '[(1,2),(3,4)]' | '((0,0))'
    polygon: '((0,0),(1,1),(1,0))'
    circle: '<(0,0),1e-300>'
    tsvector: '''b c'':3 a:1A,2B' | ''
    tsquery: 'a & !b:*AB' | ''
    pg_lsn: '16/B374D848' | 'FFFFFFFF/FFFFFFFF'
    pg_snapshot: '10:20:10,14,15'
    txid_snapshot: '10:20:10,14,15'
    xid: '4294967295'
    xid8: '18446744073709551615'
    cid: '4294967295'
    tid: '(4294967295,65535)'
    refcursor: 'a cursor'
    aclitem: 'postgres=arwdDxt/postgres' | '=r/postgres'
    int2vector: '1 -2 3' | ''
    oidvector: '1 4294967295'
    regclass: 'public.holder' | 'pg_catalog.pg_class' | '0'
    regtype: 'public.mood' | 'integer' | 'timestamp with time zone[]'
    regproc: 'pg_catalog.now'
    regprocedure: 'pg_catalog.abs(integer)'
    regoper: 'pg_catalog.||/'
    regoperator: 'pg_catalog.+(integer,integer)'
    regconfig: 'pg_catalog.english'
    regdictionary: 'pg_catalog.simple'
    regnamespace: 'public'
    regrole: 'postgres'
    regcollation: 'pg_catalog."C"'
    int4range: '[1,5]' | 'empty' | '(,)'
    int8range: '[-9223372036854775808,0)'
    numrange: '[1.10,NaN]' | '(-Infinity,1.1]'
    daterange: '[2024-01-01,infinity]' | '[4714-11-24 BC,)'
    tsrange: '["2024-01-01 00:00:00.5",)'
    tstzrange: '["2024-01-01 00:00+02",infinity)' | 'empty'
    int4multirange: '{[1,3),[7,9)}' | '{}'
    int8multirange: '{[1,3)}'
    nummultirange: '{[1.10,2)}'
    datemultirange: '{[2024-01-01,2024-02-01)}'
    tsmultirange: '{[2024-01-01,2024-02-01)}'
    tstzmultirange: '{[2024-01-01 00:00+02,)}'
    public.mood: 'it''s "ok", {fine}' | 'sad'
    "odd ""schema"."odd type": 'a'
    public.pair: ROW(1.5, 'sad', '2024-07-01 12:00+02')::public.pair | ROW(NULL, NULL, NULL)::public.pair
        | ROW(NULL, 'it''s "ok", {fine}', 'infinity')::public.pair
    public.checked_pair: ROW(1, 'sad', NULL)
    public.nested: ROW(ROW(1, NULL, NULL), ARRAY[ROW(2, 'sad', NULL)::public.pair, NULL], 'infinity')::public.nested
    public.holder: ROW(1, 'a "row", (with) all')::public.holder | ROW(NULL, '')::public.holder
    public.floatrange: '[0.1,Infinity)'
""")
"""Kept as the server's own text."""

DOMAINS = _table("""
    public.price: 3 | -99999999.99
    public.dear_price: 3.456
    public.day: '2024-02-29'
    public.counts: '{1,NULL,-3}' | '{}'
    public.moods: '{sad}' | ARRAY['it''s "ok", {fine}', NULL]::public.mood[]
""")
MARKED_DOMAINS = _table("""
    public.price: 'NaN'
    public.day: 'infinity' | '0044-03-15 BC'
    public.counts: '{{1},{2}}' | '[0:1]={7,8}'
""")

if default_major() < 15:
    for declared in ("numeric(3,-2)", "numeric(2,5)"):
        del HELD[declared]
if default_major() < 17:
    TEXTS["interval"] = tuple(value for value in TEXTS["interval"] if "infinity" not in value)

_STATISTICS = "pg_ndistinct pg_dependencies pg_mcv_list pg_brin_bloom_summary pg_brin_minmax_multi_summary"
NO_VALUE_BY_SQL = frozenset({"gtsvector", "pg_node_tree", *_STATISTICS.split()})
"""Their input functions refuse every text: no column of a user's table holds a value."""


def held_arrays(element: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """One-dimensional arrays of `values`, with NULL among them."""
    listed = ", ".join((*values, "NULL", values[0]))
    return "'{}'", f"ARRAY[{listed}]::{element}[]", f"ARRAY[NULL]::{element}[]"


def odd_arrays(element: str, value: str) -> tuple[str, ...]:
    """Arrays that are not plain lists."""
    return (
        f"array_fill({value}::{element}, ARRAY[2, 1])",
        f"array_fill({value}::{element}, ARRAY[2], ARRAY[0])",
        f"array_fill(NULL::{element}, ARRAY[1, 1, 1])",
    )
