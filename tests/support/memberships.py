"""Every way in which a publication can have a table, and can have it otherwise for a moment: generated."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

TABLES = (
    "CREATE SCHEMA s",
    "CREATE TABLE s.t (id int PRIMARY KEY, v int)",
    "CREATE TABLE s.other (id int PRIMARY KEY)",
    "CREATE TABLE s.r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
    "CREATE TABLE s.r1 PARTITION OF s.r FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE s.l (id int PRIMARY KEY, v int)",
    "INSERT INTO s.t SELECT i, i FROM generate_series(50, 150) i",
    "INSERT INTO s.r SELECT i, i FROM generate_series(50, 150) i",
    "INSERT INTO s.l SELECT i, i FROM generate_series(1050, 1150) i",
)
MEMBERS = {
    "t": "TABLE s.t",
    "t filtered": "TABLE s.t WHERE (id > 100)",
    "t with a list": "TABLE s.t (id, v)",
    "schema": "TABLES IN SCHEMA s",
    "root": "TABLE s.r",
    "root filtered": "TABLE s.r WHERE (id > 100)",
    "leaf": "TABLE s.r1",
    "leaf filtered": "TABLE s.r1 WHERE (id > 100)",
    "apart": "TABLE s.l",
}
SINCE_15 = ("t filtered", "t with a list", "schema", "root filtered", "leaf filtered")
WHOLE = {"all": "ALL TABLES", "all but one": "ALL TABLES EXCEPT (TABLE s.other)"}
VIA_ROOT = "publish_via_partition_root"


@dataclass(frozen=True)
class Membership:
    """A publication. `names` are keys of MEMBERS, or one of WHOLE."""

    names: tuple[str, ...]
    via_root: bool

    @property
    def label(self) -> str:
        return f"{' and '.join(self.names)}{', by root' if self.via_root else ''}"

    @property
    def since(self) -> int:
        """The oldest server that may have it."""
        return 19 if "all but one" in self.names else 15 if set(self.names) & set(SINCE_15) else 14

    def create(self, publication: str) -> str:
        parts = ", ".join({**MEMBERS, **WHOLE}[name] for name in self.names)
        return f"CREATE PUBLICATION {publication} FOR {parts} WITH ({VIA_ROOT} = {str(self.via_root).lower()})"

    def moments(self, major: int) -> Iterator[tuple[str, str, str]]:
        """(what is otherwise for a moment, the statement that makes it so, the one that takes it back)."""
        alter = "ALTER PUBLICATION {p} "
        whole = self.names[0] in WHOLE
        for name, part in MEMBERS.items():
            if whole or (name in SINCE_15 and major < 15):
                continue
            object_only = part.partition(" WHERE")[0].partition(" (")[0]
            drop, add = f"{alter}DROP {object_only}", f"{alter}ADD {part}"
            yield (f"without {name}", drop, add) if name in self.names else (f"with {name}", add, drop)
        if whole and major >= 19:
            back = "ALL TABLES" if self.names[0] == "all" else WHOLE["all but one"]
            for name in ("s.t", "s.r"):
                yield f"all but {name}", f"{alter}SET ALL TABLES EXCEPT (TABLE {name})", f"{alter}SET {back}"
        bounds = {"s.r1": "(0) TO (1000)", "s.l": "(1000) TO (2000)"}
        attach = {name: f"ALTER TABLE s.r ATTACH PARTITION {name} FOR VALUES FROM {of}" for name, of in bounds.items()}
        detach = {name: f"ALTER TABLE s.r DETACH PARTITION {name}" for name in bounds}
        yield "attached", attach["s.l"], detach["s.l"]
        yield "detached", detach["s.r1"], attach["s.r1"]
        yield "elsewhere", "ALTER TABLE s.t SET SCHEMA public", "ALTER TABLE public.t SET SCHEMA s"
        publish = f"{alter}SET (publish = 'insert%s')"
        yield "inserts only", publish % "", publish % ", update, delete, truncate"
        roots = [f"{alter}SET ({VIA_ROOT} = {str(way).lower()})" for way in (not self.via_root, self.via_root)]
        yield "other roots", roots[0], roots[1]


def changes(number: int) -> tuple[str, ...]:
    """Rows that come, change and go in every table, on both sides of each filter. Those of `number` alone."""
    return (
        f"INSERT INTO s.r VALUES ({number}, 0), ({number + 500}, 0)",
        f"INSERT INTO s.l VALUES ({number + 1200}, 0)",
        f"UPDATE s.r SET v = {number + 1000} WHERE id IN (60, 120)",
        f"UPDATE s.l SET v = {number + 1000} WHERE id = 1060",
        f"DELETE FROM s.r WHERE id IN ({60 + number}, {120 + number})",
        f"INSERT INTO t VALUES ({number}, 0), ({number + 500}, 0)",
        f"UPDATE t SET v = {number + 1000} WHERE id IN (60, 120)",
        f"DELETE FROM t WHERE id IN ({60 + number}, {120 + number})",
    )


def memberships() -> list[Membership]:
    """Each member by itself, in twos as far as a publication can have them, and all tables."""
    subjects = {name: name.split()[0] for name in MEMBERS}
    twos = [two for two in combinations(MEMBERS, 2) if subjects[two[0]] != subjects[two[1]]]
    # A list cannot stand beside a schema.
    twos = [two for two in twos if set(two) != {"t with a list", "schema"}]
    sets = [*((name,) for name in MEMBERS), *twos, *((name,) for name in WHOLE)]
    return [Membership(names, via_root) for names in sets for via_root in (False, True)]
