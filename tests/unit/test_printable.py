"""Names from the source in lines for people."""

from sluice import printable


def test_whatever_is_not_printable_becomes_a_question_mark_and_lines_are_our_own() -> None:
    assert printable.one_line("a\x1b[31m\nb\u202ec\x9bd é") == "a?[31m?b?c?d é"
    assert printable.lines("first\nin\x1bto") == "first\nin?to"


def test_sql_keeps_its_meaning_in_printable_characters() -> None:
    assert printable.sql('ALTER TABLE "public"."a b";') == 'ALTER TABLE "public"."a b";'
    assert (
        printable.sql('ALTER TABLE "public"."a\x1b""\\\n\U000e0001";')
        == 'ALTER TABLE "public".U&"a\\001b""\\\\\\000a\\+0e0001";'
    )


def test_sql_that_cannot_be_spelled_is_not_shown() -> None:
    assert printable.sql("SELECT 'a\x1b'") is None
