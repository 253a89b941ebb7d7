"""Column rules from the configuration file and the files of their keys."""

from pathlib import Path

import pytest

from sluice.cli import wiring
from sluice.cli.policies import column_rules, key_files, policies
from sluice.contract.column_values import HashKeys, blocks, hasher, key_id
from sluice.contract.schema import ColumnRule, RuleKind
from sluice.errors import UnsupportedChange, UsageError
from sluice.settings import Settings, load
from sluice.settings.display import effective, fingerprint
from sluice_spark.options import ApplyOptions

KEY = b"canary key of bytes"
ONE = (
    "a column has one rule: include, exclude, {mask: TEXT}, {truncate: CHARACTERS} "
    "or {hash: hmac-sha256, key_file: FILE}"
)
FORMS = """\
tables:
  public.t:
    columns:
      card: exclude
      id: include
      phone: {{mask: "***"}}
      notes: {{truncate: 200}}
      email: {{hash: hmac-sha256, key_file: {key}}}
    new_columns: exclude
"""


def settings(folder: Path, more: str) -> Settings:
    file = folder / "sluice.yaml"
    file.write_text(
        "version: 1\npipeline: shop\nsource: {dsn: 'host=nowhere'}\nspool: {uri: 'file:///var/spool'}\n"
        f"lake: {{uri: 'file:///var/lake'}}\n{more}"
    )
    return load(str(file), environ={}).settings


def with_key(folder: Path, content: bytes = KEY + b"\n") -> Settings:
    (folder / "key").write_bytes(content)
    return settings(folder, FORMS.format(key=folder / "key"))


def test_every_form_becomes_its_rule_and_the_key_is_seen_nowhere(tmp_path: Path) -> None:
    configured = with_key(tmp_path)
    rules = column_rules(configured)["public.t"]
    assert dict(rules.columns) == {
        "card": ColumnRule(RuleKind.EXCLUDE),
        "id": None,
        "phone": ColumnRule(RuleKind.MASK, mask="***"),
        "notes": ColumnRule(RuleKind.TRUNCATE, length=200),
        "email": ColumnRule(RuleKind.HASH, key_id=key_id(KEY)),
    }
    assert rules.new_columns == "exclude"
    assert policies(configured).of("public", "partition_of_t").ruled == {"public.t"}
    assert rules.keys.key(key_id(KEY), "t.email") == KEY
    assert key_files(configured) == (str(tmp_path / "key"),)
    loaded = load(str(tmp_path / "sluice.yaml"), environ={})
    options = wiring.ingest_options(configured, instance="one")
    shown = [repr(one) for one in (rules, rules.keys, policies(configured), effective(loaded), options)]
    shown += [str(fingerprint(configured)), wiring.apply_options(configured, log_format="json")]
    assert not [text for text in shown if KEY.decode() in text or KEY.hex() in text]
    assert any(key_id(KEY) in text for text in shown)


def test_the_applier_hears_nothing_of_rules(tmp_path: Path) -> None:
    options = ApplyOptions.from_json(wiring.apply_options(with_key(tmp_path), log_format="json"))
    assert options.tables == {"public.t": {}}


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_newline_at_the_end_of_the_file_is_no_part_of_the_key(tmp_path: Path, end: bytes) -> None:
    rule = column_rules(with_key(tmp_path, KEY + end))["public.t"].columns["email"]
    assert rule is not None
    assert rule.key_id == key_id(KEY)


def test_a_key_that_is_short_or_not_there_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tables\.public\.t\.columns\.email: .* at least 16") as short:
        column_rules(with_key(tmp_path, KEY[:15] + b"\n"))
    assert KEY[:15].decode() not in f"{short.value}{short.value.hint}"
    (tmp_path / "key").unlink()
    with pytest.raises(UsageError, match=r"tables\.public\.t\.columns\.email: .* cannot be read"):
        column_rules(settings(tmp_path, FORMS.format(key=tmp_path / "key")))


RULES = [
    ("drop", f": {ONE}"),
    ("excludes", f": {ONE}; did you mean exclude?"),
    ("{truncate: 0}", ".truncate: input should be greater than or equal to 1"),
    ("{mask: 5}", ".mask: input should be a valid string"),
    ("{hash: sha256, key_file: /k}", ".hash: input should be 'hmac-sha256'"),
    ("{hash: hmac-sha256}", ".key_file: missing; it has no default"),
    ("{mask: x, masks: 5}", ".masks: unknown key; did you mean mask? (allowed here: mask)"),
    ("{mask: x, truncate: 5}", f": {ONE}"),
    ("{redact: x}", f": {ONE}"),
    ("[exclude]", f": {ONE}"),
]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        *((f"{{columns: {{card: {rule}}}}}", f".columns.card{said}") for rule, said in RULES),
        ("{targets: {kind: mirror}}", ".targets: must be a list"),
        ("{targets: [{kind: history, track: v}]}", ".targets[0].track: must be a list (given: 'v')"),
        ("{columns: [v]}", ".columns: must be a mapping"),
        ("[v]", ": must be a mapping"),
    ],
)
def test_any_other_form_is_refused_by_its_place_with_what_is_allowed(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(tmp_path, f"tables: {{public.t: {table}}}\n")
    assert str(caught.value).splitlines()[1:] == [f"  sluice.yaml:6: tables.public.t{said}"]


@pytest.mark.parametrize("name", ["public.*", "public.order?", "!public.t"])
def test_rules_by_a_pattern_which_would_hold_for_no_table_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="settings are those of one table, by its name"):
        settings(tmp_path, f"tables: {{'{name}': {{columns: {{card: exclude}}}}}}\n")


def test_hashes_are_those_of_the_standard_whatever_the_key_is_long() -> None:
    """RFC 4231, cases 2 and 6."""
    key, value = b"Jefe", b"what do ya want for nothing?"
    assert hasher(key)(value).hex() == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    long = b"\xaa" * 131
    found = hasher(long)(b"Test Using Larger Than Block-Size Key - Hash Key First").hex()
    assert found == "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
    assert [len(block) for block in (*blocks(key), *blocks(long))] == [64] * 4


def test_a_key_that_is_not_known_is_said_by_its_id() -> None:
    with pytest.raises(UnsupportedChange, match=key_id(KEY)):
        HashKeys([b"another key of some bytes"]).key(key_id(KEY), "public.t.email")
