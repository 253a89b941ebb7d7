"""Settings: what is accepted or refused, which place wins, and that no secret is ever shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import UsageError
from sluice.settings import Loaded, load, secret_strings
from sluice.settings.display import effective, json_schema, masked
from sluice.settings.tree import keys
from sluice.settings.values import parse_duration, parse_retention, parse_size, show_duration, show_retention, show_size

CANARY = "canary-7f3a"
SOURCE = '{dsn: "postgresql://sluice@127.0.0.1:5432/shop"}'
MINIMAL = f"""\
version: 1
pipeline: shop
source: {SOURCE}
spool: {{uri: "file:///tmp/spool"}}
lake: {{uri: "file:///tmp/lake"}}
"""
Read = Callable[..., Loaded]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str = MINIMAL, /, **environ: str) -> Loaded:
        file = tmp_path / "sluice.yaml"
        file.write_text(text, encoding="utf-8")
        return load(str(file), environ=environ)

    return read


def refusal(read: Read, text: str = MINIMAL, /, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(text, **environ)
    return f"{caught.value}\n{caught.value.hint}"


def test_slot_and_publication_are_named_after_the_pipeline_unless_given(read: Read) -> None:
    assert read().settings.source.slot == "sluice_shop"
    assert read().settings.source.publication == "sluice_shop"
    assert read(MINIMAL, SLUICE_SOURCE__SLOT="mine").settings.source.slot == "mine"


def test_an_unknown_key_is_refused_with_its_line_what_is_allowed_and_the_nearest_name(read: Read) -> None:
    said = refusal(read, MINIMAL.replace("spool: {", "spool: {max_dealy: 3s, "))
    assert "sluice.yaml:4: spool.max_dealy: unknown key; did you mean max_delay?" in said
    assert "allowed here: consumer_hold, max_bytes, max_delay, max_rows, min_interval, options" in said


def test_all_problems_are_named_at_once(read: Read) -> None:
    said = refusal(read, "version: 2\npipeline: Shop\nspool: {uri: 'ftp://x', max_bytes: 12 parsecs}\n")
    for name in ("version", "pipeline", "source", "spool.uri", "spool.max_bytes", "lake"):
        assert name in said


def test_a_missing_setting_names_its_variable(read: Read) -> None:
    assert "SLUICE_SOURCE__DSN" in refusal(read, MINIMAL.replace(SOURCE, "{slot: a}"))


@pytest.mark.parametrize(
    "address", ["billing:9187", "ftp://billing:9187", "http://user:pw@billing:9187", "http://billing:99999", "http://"]
)
def test_the_address_of_another_pipeline_is_one_of_the_web_without_secrets(read: Read, address: str) -> None:
    more = f'telemetry: {{pipelines: {{billing: "{address}"}}}}\n'
    assert "telemetry.pipelines.billing" in refusal(read, MINIMAL + more)
    more = 'telemetry: {pipelines: {billing: "http://[::1]:9189/"}}\n'
    assert read(MINIMAL + more).settings.telemetry.pipelines == {"billing": "http://[::1]:9189"}


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("[{kind: changelogs}]", "targets[0].kind: changelogs is no kind of lake table; did you mean changelog?"),
        ("[{kind: mirror, deletes: soff}]", "targets[0].deletes: input should be 'hard' or 'soft' (given: 'soff')"),
        ("[{knd: mirror}]", "targets[0].knd: unknown key; did you mean kind?"),
        ("[{name: copy}]", "targets[0].kind: missing"),
        ("[]", "targets: a table has at least one target"),
        ("[{kind: mirror}, {kind: changelog}]", "targets: two targets have no name"),
        ("[{kind: mirror, name: A}, {kind: changelog, name: a}]", "targets: two targets are called a"),
        ("[{kind: mirror, name: a/b}]", "targets[0].name: must match"),
        ("[{kind: changelog, track: [a]}]", "targets[0]: track is"),
    ],
)
def test_a_mistake_in_a_target_is_said_with_table_field_and_nearest_word(read: Read, targets: str, said: str) -> None:
    text = MINIMAL + f"tables: {{public.orders: {{targets: {targets}}}}}\n"
    assert f"sluice.yaml:6: tables.public.orders.{said}" in refusal(read, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "tables: {public.orders: {mode: changelog}}\n", "tables.public.orders.mode: unknown key"),
        (MINIMAL + "pipeline: other\n", "sluice.yaml:6: pipeline is given twice"),
        (MINIMAL.replace("/tmp/lake", "/tmp/spool/shop/lake"), "lake.uri must not be inside the spool"),
        (MINIMAL + "metadata_columns: false\n", "did you mean lake.metadata_columns?"),
        (MINIMAL + "telemetry: {tls_cert_path: /etc/one.pem}\n", "belong together"),
        (MINIMAL + "telemetry: {tls_key_path: /etc/one.pem}\n", "belong together"),
        (MINIMAL + "telemetry: {tls_client_ca_path: /etc/ca.pem}\n", "needs tls_cert_path"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(read: Read, text: str, said: str) -> None:
    assert said in refusal(read, text)


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(read: Read) -> None:
    text = MINIMAL.replace("spool: {", "spool: {max_delay: 3s, ")
    assert read(text).settings.spool.max_delay == 3.0
    environ = {"SLUICE_SOURCE__TABLES": "public.a, sales.*", "SLUICE_LAKE__METADATA_COLUMNS": "false"}
    loaded = read(text, SLUICE_SPOOL__MAX_DELAY="500ms", **environ)
    assert loaded.settings.spool.max_delay == 0.5
    assert loaded.settings.source.tables == ("public.a", "sales.*")
    assert loaded.settings.lake.metadata_columns is False
    assert loaded.origin(("spool", "max_delay")) == "env SLUICE_SPOOL__MAX_DELAY"
    assert read(text).origin(("spool", "max_delay")) == "sluice.yaml:4"
    assert read(text).origin(("spool", "max_bytes")) == "default"
    assert {line.name: line.origin for line in effective(read())}["spool.max_bytes"] == "default"


def test_a_mounted_secret_is_read_from_its_file(read: Read, tmp_path: Path) -> None:
    secret = tmp_path / "dsn"
    secret.write_text(f"postgresql://u:{CANARY}@h/d\n", encoding="utf-8")
    loaded = read(MINIMAL, SLUICE_SOURCE__DSN_FILE=str(secret))
    assert loaded.settings.source.dsn.get_secret_value() == f"postgresql://u:{CANARY}@h/d"
    assert loaded.origin(("source", "dsn")) == "env SLUICE_SOURCE__DSN_FILE"


def test_a_variable_beside_its_file_variant_and_a_file_that_is_missing_are_refused_by_name(read: Read) -> None:
    both = refusal(read, SLUICE_SOURCE__DSN=CANARY, SLUICE_SOURCE__DSN_FILE="/x")
    assert "both SLUICE_SOURCE__DSN and SLUICE_SOURCE__DSN_FILE" in both
    missing = refusal(read, SLUICE_SOURCE__DSN_FILE="/nowhere/dsn")
    assert "SLUICE_SOURCE__DSN_FILE names a file that cannot be read" in missing


@pytest.mark.parametrize(
    "name", ["SLUICE_SORCE__DSN", "SLUICE_PIPELIN", "SLUICE_SPOOL__OPTIONS", "SLUICE_SPOOL_URI", "SLUICE_"]
)
def test_a_mistyped_variable_is_refused_at_every_level(read: Read, name: str) -> None:
    said = refusal(read, MINIMAL, **{name: CANARY})
    assert f"the environment variable {name} names no setting" in said
    assert CANARY not in said


def test_variables_that_kubernetes_makes_for_a_service_are_no_settings(read: Read) -> None:
    read(
        MINIMAL,
        SLUICE_SERVICE_HOST="10.0.0.1",
        SLUICE_PORT="tcp://10.0.0.1:9187",
        SLUICE_PORT_9187_TCP_ADDR="10.0.0.1",
        SLUICE_INGEST_SERVICE_PORT_METRICS="1",
    )


def test_store_options_come_from_the_environment_one_by_one(read: Read) -> None:
    environ = {"SLUICE_SPOOL__OPTIONS__AWS_ACCESS_KEY_ID": "a", "SLUICE_SPOOL__OPTIONS__AWS_REGION": "b"}
    options = read(**environ).settings.spool.options
    given = {name: value.get_secret_value() for name, value in options.items()}
    assert given == {"aws_access_key_id": "a", "aws_region": "b"}


def test_references_take_the_environments_value_and_an_unset_one_is_an_error(read: Read) -> None:
    text = MINIMAL.replace("/tmp/lake", "/tmp/${LAKE}/${DEPTH:-x}/$${kept}")
    assert read(text, LAKE="here").settings.lake.uri == "file:///tmp/here/x/${kept}"
    said = refusal(read, text)
    assert "sluice.yaml:5: lake.uri: the environment variable LAKE is not set" in said


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL.replace("dsn: ", "dsm: ").replace("sluice@", f"sluice:{CANARY}@"),
        MINIMAL.replace(SOURCE, f"{{dsn: [{CANARY}]}}"),
        MINIMAL.replace(SOURCE, f"postgresql://u:{CANARY}@h/d"),
        MINIMAL.replace("spool: {", f"spool: {{options: {{aws_secret_access_key: [{CANARY}]}}, "),
        MINIMAL.replace("spool: {", f"spool: {{options: {CANARY}, "),
        MINIMAL.replace("file:///tmp/lake", f"s3://key:{CANARY}@bucket/lake"),
        MINIMAL + f"password: {CANARY}\n",
        MINIMAL + f"apply: {{conf: {{spark.hadoop.fs.s3a.secret.key: [{CANARY}]}}}}\n",
        MINIMAL + f"{{: {CANARY}\n",
        MINIMAL + f"x: !!python/object {CANARY}\n",
    ],
)
def test_no_error_repeats_a_secret(read: Read, text: str) -> None:
    assert CANARY not in refusal(read, text)


def test_secrets_are_masked_wherever_settings_are_shown(read: Read) -> None:
    loaded = read(
        MINIMAL.replace("spool: {", f"spool: {{options: {{aws_secret_access_key: {CANARY}}}, ")
        + f"apply: {{conf: {{spark.x.token: {CANARY}}}}}\n",
        SLUICE_SOURCE__DSN=f"postgresql://u:{CANARY}@h/d",
    )
    shown = [repr(effective(loaded)), repr(loaded.settings), str(loaded.settings), loaded.settings.model_dump_json()]
    shown.append(json.dumps(masked(loaded.settings)))
    assert all(CANARY not in text for text in shown)
    assert "********" in shown[0]


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p%40ss%2Fword@h/d",
        "postgresql://u@h/d?password=p%40ss%2Fword",
        "host=h user=u password=p@ss/word",
        "host=h password='p@ss/word' user=u",
        r"host=h password = p\@ss/word",
    ],
)
def test_the_password_is_found_in_every_form_of_connection_string(read: Read, dsn: str) -> None:
    assert "p@ss/word" in secret_strings(read(MINIMAL, SLUICE_SOURCE__DSN=dsn).settings)


def test_a_connection_string_without_password_arms_no_redaction(read: Read) -> None:
    assert secret_strings(read().settings) == ()


@pytest.mark.parametrize(
    ("text", "size"), [("128MiB", 128 << 20), ("1.5 KiB", 1536), ("10kB", 10_000), ("7", 7), (7, 7), ("3mib", 3 << 20)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2.0),
        ("2", 2.0),
        ("500ms", 0.5),
        ("1.5m", 90.0),
        ("1h", 3600.0),
        (3, 3.0),
        ("0.25", 0.25),
        ("1d", 86400.0),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(show_duration(seconds)) == seconds


REFUSED: dict[Callable[[Any], object], tuple[str, list[object]]] = {
    parse_size: ("such as 128MiB", ["128M", "", "-1MiB", "1.3B", "MiB", True, None, [1]]),
    parse_duration: ("such as 2s", ["2 weeks", "s", "-1s", "1m30s", True, None]),
    parse_retention: (
        "a retention is|hundred years",
        [7, 7.5, float("inf"), "0.5", "always", "-1d", "1w", None, "9" * 14 + "d", "nan"],
    ),
}


@pytest.mark.parametrize(("parse", "value"), [(parse, value) for parse in REFUSED for value in REFUSED[parse][1]])
def test_what_is_none_or_could_mean_two_things_is_refused_with_an_example(
    parse: Callable[[Any], object], value: object
) -> None:
    with pytest.raises(ValueError, match=REFUSED[parse][0]):
        parse(value)


@pytest.mark.parametrize("number", ["0100000000", "0x10", "0b1", "1:30", "190:20:30", "1:30.5", "+012"])
def test_a_number_that_yaml_takes_for_another_one_is_refused(number: str, read: Read) -> None:
    text = MINIMAL.replace("spool: {", "spool: {max_bytes: " + number + ", ")
    assert "sluice.yaml:4: spool.max_bytes is no plain decimal number" in refusal(read, text)


@pytest.mark.parametrize("number", ["0", "0.25", "-1", "1_000", "+3"])
def test_plain_decimal_numbers_are_taken_as_they_are_written(number: str, read: Read) -> None:
    with pytest.raises(UsageError, match="max_rows") as caught:
        read(MINIMAL.replace("spool: {", f"spool: {{max_delay: {number}, max_rows: -7, "))
    assert "decimal" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("source.streaming", "off", "off"),
        ("source.streaming", "on", "on"),
        ("telemetry.apply_listen", "off", "off"),
        ("source.two_phase", "yes", True),
        ("source.two_phase", "off", False),
        ("lake.lower", "true", True),
    ],
)
def test_a_word_that_yaml_takes_for_a_truth_is_what_is_written(key: str, value: str, taken: object, read: Read) -> None:
    section, _, name = key.partition(".")
    text = MINIMAL if section in MINIMAL else MINIMAL + f"{section}: {{}}\n"
    settings = read(text.replace(f"{section}: {{", f"{section}: {{{name}: {value}, ")).settings
    assert getattr(getattr(settings, section), name) == taken


@pytest.mark.parametrize(
    ("variable", "value", "taken"),
    [
        ("SLUICE_SOURCE__TABLES", "public.*, !public.logs", ("public.*", "!public.logs")),
        ("SLUICE_SOURCE__ACCEPT_MISSING", "truncate,delete", ("truncate", "delete")),
        ("SLUICE_SOURCE__MESSAGE_PREFIXES", "a*", ("a*",)),
        ("SLUICE_LAKE__REPLACES", "old, older", ("old", "older")),
    ],
)
def test_a_list_is_given_in_its_variable_with_commas(
    variable: str, value: str, taken: tuple[str, ...], read: Read
) -> None:
    _, section, name = variable.lower().replace("__", "_", 1).split("_", 2)
    settings = read(MINIMAL, SLUICE_SOURCE__MESSAGES="true", **{variable: value}).settings
    assert getattr(getattr(settings, section), name) == taken


def test_every_list_that_has_a_variable_can_be_given_by_it() -> None:
    lists = {key.name for key in keys() if key.list_of_strings and key.from_environment}
    assert lists == {"source.tables", "source.accept_missing", "source.message_prefixes", "lake.replaces"}


@pytest.mark.parametrize("value", ["7.0", "7.5", ".inf"])
def test_a_retention_without_a_unit_is_refused_in_every_spelling_of_a_number(value: str, read: Read) -> None:
    said = refusal(read, MINIMAL.replace("spool: {", "spool: {retention: " + value + ", "))
    assert "a retention is until_applied, forever or a duration such as 7d" in said


@pytest.mark.parametrize(
    "text", ["telemetry: &a {x: *a}\n", "telemetry: &a [*a]\n", "x: " + "[" * 2000 + "]" * 2000 + "\n"]
)
def test_a_file_without_an_end_is_refused_by_its_name(text: str, read: Read) -> None:
    assert "nested too deeply" in refusal(read, MINIMAL + text)


def test_a_value_that_yaml_takes_for_an_alias_is_not_repeated(read: Read) -> None:
    said = refusal(read, MINIMAL.replace(SOURCE, "{dsn: *" + CANARY + "}"))
    assert "sluice.yaml:3: not valid YAML: undefined alias" in said
    assert CANARY not in said


@pytest.mark.parametrize("password", [f"p@{CANARY}", f"{CANARY}/w", f"{CANARY}/w@x", f"a@b/{CANARY}"])
def test_a_password_of_which_a_part_would_be_taken_for_the_host_is_refused(password: str, read: Read) -> None:
    said = refusal(read, MINIMAL.replace("sluice@127", f"sluice:{password}@127"))
    assert "sluice.yaml:3: source.dsn: in the user name and the password of a URI, @ is written as %40" in said
    assert CANARY not in said


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p%40s%2Fs@h1,h2:5432/d",
        "postgresql:///d?host=/run&user=a@b",
        "postgres://u:a?b#c@h/d?application_name=x@y",
        "host=h user=a@b password=p@/q",
    ],
)
def test_a_connection_string_that_is_read_as_it_is_meant_is_taken(dsn: str, read: Read) -> None:
    assert (
        read(MINIMAL.replace("postgresql://sluice@127.0.0.1:5432/shop", dsn)).settings.source.dsn.get_secret_value()
        == dsn
    )


@pytest.mark.parametrize("section", ["spool", "lake"])
@pytest.mark.parametrize("uri", ["file:///tmp/x ", " file:///tmp/x", "s3://bucket/x\t"])
def test_an_address_with_a_space_at_its_end_is_refused(section: str, uri: str, read: Read) -> None:
    text = MINIMAL.replace(f"file:///tmp/{section}", uri.replace("\t", "\\t"))
    assert f"{section}.uri: an address" in refusal(read, text)


@pytest.mark.parametrize("key", ["source.snapshot_hold", "source.snapshot_max_replica_lag", "spool.consumer_hold"])
@pytest.mark.parametrize("value", [".inf", "99999999999d"])
def test_no_duration_is_without_an_end(key: str, value: str, read: Read) -> None:
    section, _, name = key.partition(".")
    text = MINIMAL.replace(f"{section}: {{", f"{section}: {{{name}: {value}, ")
    assert f"{key}: input should be less than or equal to" in refusal(read, text)


def test_an_endless_retention_is_a_text_in_json(read: Read) -> None:
    shown = effective(read(MINIMAL.replace("spool: {", "spool: {retention: forever, ")))
    values = {line.name: line.value for line in shown}
    assert values["spool.retention"] == "forever"
    json.dumps(values, allow_nan=False)


def test_every_setting_has_its_own_variable_and_the_json_schema_forbids_unknown_keys() -> None:
    found = list(keys())
    assert len({key.env for key in found}) == len(found)
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections if section.get("type") == "object")


@pytest.mark.parametrize("text", ["until_applied", "forever", "7d", "36h", "90s"])
def test_a_retention_is_shown_as_it_is_written(text: str) -> None:
    assert show_retention(parse_retention(text)) == text


@pytest.mark.parametrize(
    ("catalog", "template"),
    [
        ("{kind: hive, uri: 'thrift://127.0.0.1:9083'}", "{schema}.{target}"),
        ("{kind: glue}", "{schema}.{target}"),
        ("{kind: unity, uri: 'https://unity.example.com'}", "{pipeline}.{schema}.{target}"),
        ("{kind: hive, uri: 'thrift://127.0.0.1:9083', name: 'lake.{schema}_{target}'}", "lake.{schema}_{target}"),
        ("{kind: none}", ""),
    ],
)
def test_a_catalog_has_a_template_of_names(read: Read, catalog: str, template: str) -> None:
    assert read(f"{MINIMAL}catalog: {catalog}\n").settings.catalog.template == template


@pytest.mark.parametrize(
    ("catalog", "why"),
    [
        ("{kind: hive}", "thrift://"),
        ("{kind: hive, uri: 'https://127.0.0.1:9083'}", "thrift://"),
        ("{kind: hive, uri: 'thrift://127.0.0.1'}", "thrift://HOST:PORT"),
        ("{kind: unity}", "https://"),
        ("{kind: unity, uri: 'https://u.example.com', name: '{schema}.{target}'}", "catalog.schema.table"),
        ("{kind: glue, name: '{schema}.{table}'}", "{target} must stand in it once"),
        ("{kind: iceberg}", "hive"),
    ],
)
def test_a_catalog_that_cannot_be_asked_is_refused_with_the_reason(read: Read, catalog: str, why: str) -> None:
    assert why in refusal(read, f"{MINIMAL}catalog: {catalog}\n")


def test_the_token_of_a_catalog_is_a_secret_that_a_file_may_hold(read: Read, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-unity\n", encoding="utf-8")
    unity = {"SLUICE_CATALOG__KIND": "unity", "SLUICE_CATALOG__URI": "https://unity.example.com"}
    settings = read(**unity, SLUICE_CATALOG__TOKEN_FILE=str(token)).settings
    assert "a-token-of-unity" in secret_strings(settings)
    assert "a-token-of-unity" not in repr(settings)
