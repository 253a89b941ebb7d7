"""SQL that makes of a value what a column rule makes of it, on the server: `contract.column_values` says what that is.

Invariant: a key is in no statement and no parameter of one, so that neither logs nor statistics of the server show
it: it comes as a setting with which the session begins. (PostgreSQL: Binary String Functions, sha256; Customized
Options.)
"""

from collections.abc import Iterable
from dataclasses import replace

from sluice.contract.catalog_facts import ColumnFacts
from sluice.contract.column_values import blocks
from sluice.contract.schema import ColumnRule, ColumnSchema, RuleKind
from sluice.quoting import quote_identifier, quote_literal
from sluice.source.sessions import KnownSource

_ALREADY_TEXT = frozenset((25, 1043))
"""text and varchar: their text is themselves. char(n) would lose its padding."""


def text_sent(facts: ColumnFacts) -> str:
    """The text that the stream would send for the value."""
    name = quote_identifier(facts.name)
    if facts.base_type_oid in _ALREADY_TEXT:
        return f"{name}::pg_catalog.text"
    if facts.is_enum and facts.type_oid != facts.base_type_oid:
        # A domain is no enumeration to the parser. Whatever the cast to text is, this calls the output function.
        return f"CASE WHEN {name} IS NOT NULL THEN pg_catalog.concat({name}) END"
    return f"pg_catalog.textin({facts.output_function}({name}))"


def text_stored(facts: ColumnFacts, rule: ColumnRule | None) -> str:
    """The text that is stored for it. Where `rule` hashes, the session is one of `with_hash_keys`."""
    text = text_sent(facts)
    if rule is None:
        return text
    if rule.kind is RuleKind.TRUNCATE:
        return f"pg_catalog.substr({text}, 1, {rule.length})"
    if rule.kind is RuleKind.HASH:
        value = f"pg_catalog.convert_to({text}, 'UTF8')"
        inner = f"pg_catalog.sha256({_block('inner', rule)} || {value})"
        return f"pg_catalog.encode(pg_catalog.sha256({_block('outer', rule)} || {inner}), 'hex')"
    # Of a composite value whose fields are all null IS NULL would hold, too.
    present = f"pg_catalog.num_nonnulls({quote_identifier(facts.name)}) = 1"
    return f"CASE WHEN {present} THEN {quote_literal(rule.mask)}::pg_catalog.text END"


def with_hash_keys(options: KnownSource, columns: Iterable[ColumnSchema]) -> KnownSource:
    """For sessions that hash values of these columns. Raises UnsupportedChange where a key is not known."""
    settings: dict[str, str] = {}
    for column in columns:
        if column.rule is not None and column.rule.kind is RuleKind.HASH:
            inner, outer = blocks(options.hash_keys.key(column.rule.key_id, column.name))
            settings |= {_setting("inner", column.rule): inner.hex(), _setting("outer", column.rule): outer.hex()}
    return replace(options, settings={**options.settings, **settings}) if settings else options


def _block(side: str, rule: ColumnRule) -> str:
    """Asked for once in a statement."""
    setting = quote_literal(_setting(side, rule))
    return f"(SELECT pg_catalog.decode(pg_catalog.current_setting({setting}), 'hex'))"


def _setting(side: str, rule: ColumnRule) -> str:
    return f"sluice.{side}_{rule.key_id}"
