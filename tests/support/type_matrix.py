"""A table with a column of every kind of type, and values and names that are easy to get wrong."""

SCHEMA = 'odd "schema'
NAME = 'it\'s, "t"'
TABLE = '"odd ""schema"."it\'s, ""t"""'

DEFINITIONS = (
    "CREATE TYPE public.mood AS ENUM ('sad', 'it''s \"ok\", {fine}')",
    "CREATE DOMAIN public.price AS numeric(10,2)",
    "CREATE DOMAIN public.dear_price AS public.price CHECK (VALUE > 0)",
    "CREATE DOMAIN public.moods AS public.mood[]",
    'CREATE TYPE public.pair AS (x public.price, y public.mood, "Z z" timestamptz)',
    "CREATE DOMAIN public.checked_pair AS public.pair CHECK (true)",
    'CREATE SCHEMA "odd ""schema"',
    'CREATE TYPE "odd ""schema"."odd type" AS ENUM (\'a\')',
)

COLUMNS: dict[str, tuple[str, ...]] = {
    "bool": ("true", "false"),
    "int2": ("-32768", "32767"),
    "int4": ("-2147483648",),
    "int8": ("9223372036854775807", "-9223372036854775808"),
    "float4": ("0.1", "'NaN'", "3.4e38"),
    "float8": ("0.1", "'-Infinity'", "1e-307", "'-0'"),
    "numeric": ("1.10", "'NaN'", "1e100", "'-Infinity'", "0.000"),
    "numeric(12,2)": ("1.1", "-0.004", "9999999999.99"),
    "money": ("12.34", "-1234.5"),
    "text": ("E'tab\\tnew\\nline \\\\ \"ü\" 😀 '' \\\\N'", "''", "repeat('long ü ', 100000)"),
    "varchar(20)": ("'v '", "''"),
    "char(8)": ("'pad'", "''"),
    '"char"': ("'c'", "''"),
    "name": ("'n'",),
    "bytea": ("'\\x00ff27'", "''", "decode(repeat('00ff', 50000), 'hex')"),
    "date": ("'2024-02-29'", "'infinity'", "'4713-01-01 BC'", "'5874897-12-31'"),
    "time": ("'24:00:00'", "'00:00:00.000001'"),
    "timetz": ("'12:00:00+05:30:15'", "'00:00-12'"),
    "timestamp": ("'2024-02-29 12:00:00.000001'", "'-infinity'", "'294276-12-31 23:59:59.999999'"),
    "timestamptz": (
        "'2024-07-01 12:00:00.5+05:30'",
        "'4713-01-01 00:00:00+00 BC'",
        "'infinity'",
        "'1883-11-18 12:03:58-04:56:02'",
    ),
    "interval": ("'1 year -2 days 03:00:00.5'", "'-1 mon +1 day'", "'178000000 years'", "'0'"),
    "uuid": ("'A0EEBC999C0B4EF8BB6D6BB9BD380A11'",),
    "json": ('\'{"b": 1, "a":  2, "a": 3, "u": "\\u0000"}\'', "'null'"),
    "jsonb": ('\'{"b": 1.10, "a": 2, "a": 3}\'', "'null'"),
    "jsonpath": ("'$.a[*] ? (@ > 1)'",),
    "inet": ("'10.0.0.1/8'", "'::1'"),
    "cidr": ("'10.0.0.0/8'", "'1.2.3.4/32'"),
    "macaddr": ("'08002b010203'",),
    "bit(3)": ("B'000'",),
    "varbit": ("B''", "B'10101'"),
    "point": ("'(1.5,-0)'", "'(NaN,Infinity)'"),
    "box": ("'(3,4),(1,2)'",),
    "path": ("'[(1,2),(3,4)]'", "'((0,0))'"),
    "int4[]": ("'{1,NULL,3}'", "'{}'", "'{{1,2},{3,4}}'", "'[2:3]={1,2}'"),
    "text[]": ("ARRAY['a,b', '\"q\"', NULL, 'NULL', '', '\\', ' ']", "'{}'"),
    "bool[]": ("'{t,f,NULL}'",),
    "box[]": ("ARRAY['(3,4),(1,2)'::box, '(1,1),(0,0)']",),
    "numeric(12,2)[]": ("'{1,NULL,-0.005}'",),
    "timestamptz[]": ("ARRAY['2024-07-01 12:00+02'::timestamptz, 'infinity']",),
    "tstzrange": ("'[2024-01-01 00:00+02,)'", "'empty'"),
    "int4multirange": ("'{[1,3),[7,9)}'", "'{}'"),
    "public.mood": ("'it''s \"ok\", {fine}'",),
    "public.mood[]": ("ARRAY['sad', 'it''s \"ok\", {fine}']::public.mood[]",),
    "public.moods": ("'{sad}'",),
    "public.pair": ("ROW(1.5, 'sad', '2024-07-01 12:00+02')", "ROW(NULL, NULL, NULL)"),
    "public.pair[]": ("ARRAY[ROW(NULL, 'it''s \"ok\", {fine}', NULL)::public.pair]",),
    "public.checked_pair": ("ROW(1, 'sad', NULL)",),
    "public.price": ("3",),
    "public.dear_price": ("3.456",),
    '"odd ""schema"."odd type"': ("'a'",),
    "regclass": ("'public.mood_holder'", "'pg_catalog.pg_class'"),
    "regtype": ("'public.mood'", "'integer'"),
    "oid": ("4294967295",),
    "xid8": ("'18446744073709551615'",),
    "tsvector": ("'a:1 b:2'",),
    "tsquery": ("'a & !b'",),
    "pg_lsn": ("'16/B374D848'",),
    "aclitem[]": ("'{=r/postgres}'",),
}
"""Type to SQL values; a NULL is added to each."""

ROW_COUNT = max(len(values) for values in COLUMNS.values()) + 1


def create_table() -> str:
    """The table: `id`, one column per type with a name to stumble over, and one of every kind at the end."""
    columns = ", ".join(f'"C{number} ""ü"", \'{number}" {type_name}' for number, type_name in enumerate(COLUMNS))
    return f"CREATE TABLE {TABLE} (id int PRIMARY KEY, {columns})"


def inserts() -> list[str]:
    """One statement per row: the n-th value of each type, NULL where there are no more."""
    rows = []
    for number in range(ROW_COUNT):
        values = (values[number] if number < len(values) else "NULL" for values in COLUMNS.values())
        rows.append(f"INSERT INTO {TABLE} VALUES ({number}, {', '.join(values)})")
    return rows
