"""Arguments that are refused before anything is done: what a shell makes of a variable that is empty, and bytes that no
database takes.
"""

import click


def given(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The callback of a name: an empty one is not taken for its absence."""
    if text == "":
        raise click.BadParameter("it is empty")
    return text


def utf8(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """The callback of a text for a database."""
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it holds bytes that are not valid UTF-8") from None
    return text
