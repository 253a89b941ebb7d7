"""Several expositions as one: those of all processes of a fleet, for one scrape.

Invariant: a family is announced once with all its series behind it, as the format demands, and two
processes of one pipeline never have the same series: each gets the label `component`, unless it has
one. Knows the form that `Metrics.render` writes, and no other.
"""

from collections.abc import Iterable

_HELP, _TYPE = "# HELP ", "# TYPE "


def merged(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """The series of all `parts`, each of which was rendered by the component that it begins with."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for component, text in parts:
        family = ""
        for line in text.decode().split("\n"):
            if line.startswith((_HELP, _TYPE)):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if not any(known.startswith(line[: len(_HELP)]) for known in head):
                    head.append(line)
            elif line:
                series.setdefault(family, []).append(_labelled(line, component))
    lines = [line for family in heads for line in (*heads[family], *series.get(family, ()))]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(line: str, component: str) -> str:
    """Every series has the label `pipeline`, so that each has labels."""
    name, brace, rest = line.partition("{")
    if not brace or 'component="' in rest.rpartition("}")[0]:
        return line
    return f'{name}{{component="{component}",{rest}'
