"""Any name is quoted into exactly one token that spells it, as readers like the server's lexers see it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import UsageError
from sluice.quoting import (
    publication_names,
    quote_identifier,
    quote_literal,
    quote_qualified,
    quote_replication_literal,
    quote_slot,
)

HOSTILE = ["it's", 'a"; DROP TABLE t; --', '""', "'", "new\nline", "ünïcode", "a.b", " trailing ", "$$", "E'", "/*"]
names = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15),
)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def read_quoted(text: str, quote: str) -> tuple[str, str]:
    """What a doubled-quote lexer reads at the start of `text`, and what is left behind it."""
    assert text[0] == quote
    value, position = "", 1
    while True:
        end = text.index(quote, position)
        value += text[position:end]
        if text[end + 1 : end + 2] != quote:
            return value, text[end + 1 :]
        value += quote
        position = end + 2


@given(names)
def test_an_identifier_is_one_token_that_spells_the_name(name: str) -> None:
    assert read_quoted(quote_identifier(name), '"') == (name, "")


@given(names, names)
def test_a_qualified_name_is_two_identifiers_and_a_dot(schema: str, name: str) -> None:
    first, rest = read_quoted(quote_qualified(schema, name), '"')
    assert first == schema
    assert rest[0] == "."
    assert read_quoted(rest[1:], '"') == (name, "")


@given(texts)
def test_a_literal_is_one_token_whatever_backslashes_mean(text: str) -> None:
    quoted = quote_literal(text).strip()
    if quoted.startswith("E"):
        value, rest = read_quoted(quoted[1:], "'")
        assert value.replace("\\\\", "\\") == text
        assert "\\" not in value.replace("\\\\", "")
    else:
        value, rest = read_quoted(quoted, "'")
        assert value == text
        assert "\\" not in value
    assert rest == ""


@given(texts)
def test_a_replication_literal_doubles_quotes_and_nothing_else(text: str) -> None:
    assert read_quoted(quote_replication_literal(text), "'") == (text, "")


@given(st.lists(names, min_size=1, max_size=4))
def test_publication_names_is_a_list_of_identifiers_inside_one_literal(listed: list[str]) -> None:
    rest, behind = read_quoted(publication_names(listed), "'")
    assert behind == ""
    seen = []
    while rest:
        name, rest = read_quoted(rest.removeprefix(","), '"')
        seen.append(name)
    assert seen == listed


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "ü" * 64])
def test_a_name_that_postgresql_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        quote_identifier(name)


def test_a_name_may_need_more_bytes_in_utf8_than_in_the_encoding_of_its_server() -> None:
    assert quote_identifier("ü" * 63) == '"' + "ü" * 63 + '"'


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "a b", 'a"b', "x" * 64, "ü", "a\n"])
def test_a_name_that_slots_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        quote_slot(name)
