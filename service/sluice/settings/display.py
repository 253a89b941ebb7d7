"""Settings shown to people and programs: the effective values, the JSON Schema, the variables, the
documentation page.

Invariant: no secret is shown, in any form.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from sluice.printable import MASK
from sluice.settings.columns import FORMS
from sluice.settings.load import Loaded
from sluice.settings.model import Settings
from sluice.settings.tables import TableSettings
from sluice.settings.targets import TargetSettings
from sluice.settings.tree import Key, Path, keys


@dataclass(frozen=True, slots=True)
class Shown:
    """One effective value. `value` is plain JSON with numbers for sizes and durations that have an end,
    `text` what people write.
    """

    name: str
    value: Any
    text: str
    origin: str


def effective(loaded: Loaded) -> list[Shown]:
    """Every setting in the order of the models, secrets masked. Map settings give one line per name
    in them.
    """
    canonical = masked(loaded.settings.model_dump(mode="python"))
    written = masked(loaded.settings.model_dump(mode="json"))
    lines: list[Shown] = []
    for key in keys():
        value, text = _at(canonical, key.path), _at(written, key.path)
        if isinstance(value, dict) and value:
            lines += [_shown(loaded, (*key.path, name), value[name], text[name]) for name in value]
        else:
            lines.append(_shown(loaded, key.path, value, text))
    return lines


def masked(value: Any) -> Any:
    """`value` with every secret replaced by a mask, as plain JSON values."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, BaseModel):
        return masked(value.model_dump())
    if isinstance(value, dict):
        return {str(name): masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


def fingerprint(settings: Settings) -> int:
    """48 bits, exact as a number of Prometheus, by which two processes see whether they run with
    the same settings. Secrets do not count.
    """
    shown = json.dumps(masked(settings.model_dump(mode="python")), sort_keys=True, default=str)
    return int(hashlib.sha256(shown.encode()).hexdigest()[:12], 16)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the configuration file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Settings.model_json_schema(),
        "title": "Sluice pipeline",
    }


def variables() -> list[tuple[str, str]]:
    """Every environment variable with what it sets."""
    return [
        (f"{key.env}__<NAME>" if key.map_of_strings else key.env, key.field.description or "")
        for key in keys()
        if key.from_environment
    ]


def page() -> str:
    """docs/configuration.md."""
    rows = [
        f"| `{key.name}` | {_default(key)} | {_limits(_owner(key.path), key.path[-1])} | "
        f"{_escaped(key.field.description or '')} | {_variable(key)} |"
        for key in keys()
    ]
    rules = [row for form in FORMS.values() for row in _rows(form)]
    return "\n".join(
        [
            _PAGE_HEAD,
            *rows,
            _OF_TABLES,
            *_rows(TableSettings),
            _OF_TARGETS,
            *_rows(TargetSettings),
            _OF_RULES,
            *rules,
            "",
        ]
    )


def _shown(loaded: Loaded, path: Path, value: Any, text: Any) -> Shown:
    if value == math.inf:
        value = text  # JSON has no number for it
    return Shown(".".join(path), value, text if isinstance(text, str) else json.dumps(text), loaded.origin(path))


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _default(key: Key) -> str:
    if key.path in (("source", "slot"), ("source", "publication")):
        return "`sluice_<pipeline>`"
    return _default_of(_owner(key.path), key.path[-1])


def _default_of(section: type[BaseModel], name: str) -> str:
    field = section.model_fields[name]
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return "" if default in (None, "", {}, SecretStr(""), PydanticUndefined) else _written(section, name, default)


def _limits(section: type[BaseModel], name: str) -> str:
    """The least and the greatest value of a setting, empty where it has none worth saying."""
    found = section.model_fields[name].metadata
    least, most = (next((getattr(one, end) for one in found if hasattr(one, end)), None) for end in ("ge", "le"))
    shown = "`0`" if least == 0 else _written(section, name, least)
    if most is not None:
        return f"{shown} to {_written(section, name, most)}"
    return f"at least {shown}" if least else ""


def _written(section: type[BaseModel], name: str, value: Any) -> str:
    """`value` as people write it for this setting."""
    shown = section.model_construct(None, **{name: value}).model_dump(mode="json", include={name})
    return f"`{_plain(shown[name])}`"


def _rows(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        words = _escaped(field.description or "")
        yield f"| `{name}` | {_default_of(section, name)} | {_limits(section, name)} | {words} |"


def _owner(path: Path) -> type[BaseModel]:
    owner: type[BaseModel] = Settings
    for part in path[:-1]:
        annotation = owner.model_fields[part].annotation
        assert isinstance(annotation, type)
        owner = annotation
    return owner


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _variable(key: Key) -> str:
    if not key.from_environment:
        return ""
    return f"`{key.env}__<NAME>`" if key.map_of_strings else f"`{key.env}`"


_PAGE_HEAD = """\
# Configuration

Each pipeline has one YAML file: `-c FILE`, or the variable `SLUICE_CONFIG`, or `sluice.yaml`.
`sluice init` writes one with comments. `sluice config show` prints the settings in force, and where
each value comes from. `sluice config validate` checks the file. `sluice config schema` prints a
JSON Schema for editors.

* **Order.** The environment overrides the file, and the file overrides the default. Two underscores
  separate the levels of a key: `SLUICE_SOURCE__DSN` is `source.dsn`.
* **Lists** in a variable have commas between their items: `SLUICE_SOURCE__TABLES=public.*,!public.logs`.
* **Mounted secrets.** Add `_FILE` to any variable to name a file that contains the value:
  `SLUICE_SOURCE__DSN_FILE=/run/secrets/dsn`.
* **`${VAR}`** in the file is replaced with the value of this variable. `${VAR:-default}` gives a
  default; `$${` stands for the two characters `${`. A variable that is not set is an error.
* **Sizes and durations** are written `128MiB`, `2s`. A plain number is bytes or seconds; only
  `spool.retention` needs a unit.
* **Unknown names are refused**, both keys in the file and variables that begin with `SLUICE_`.
  Errors name the line, what is allowed and the nearest valid name.
* **Secrets** (the connection string, object store options, Spark configuration) are never shown.

## Changes while a process runs

`run`, `up` and `apply` check the file, and the files of mounted secrets, every two seconds, and at
once after SIGHUP. They apply changes of these settings without a restart: `source.tables`,
`source.snapshot_max_*` and `source.snapshot_hold` (also for a snapshot that waits), everything
below `tables`, `limits`, `apply.freshness`, `apply.maintenance_share`, `spool.retention`,
`lake.vacuum_after`, `telemetry.log_level`, the credentials in `source.dsn`, and keys of S3
([rotation.md](how-to/rotation.md)). They refuse the whole file if anything else changed in it, if
it is not valid, or if it changes what the lake tables of a carried table are: its `targets` (but
not their `freshness`), `properties`, `cluster_by` or `partition_by`. All settings then stay as they
were. The problem `configuration.refused` says why, until you restart the process or restore the old
values. `process.configuration` in `/status` says since when the present settings are in force.
Variables still override the file, and cannot change while a process runs.

A process reads a changed file after it has stayed the same for two seconds, so that it does not
read half of it. Closing the terminal of `up` also sends SIGHUP; this one stops `up`.

## Form

```yaml
version: 1
pipeline: shop
source: {dsn: "postgresql://sluice@127.0.0.1:5432/shop", tables: ["public.*"]}
spool: {uri: "file:///var/lib/sluice/spool", max_delay: 2s, max_bytes: 128MiB}
lake: {uri: "file:///var/lib/sluice/lake", mode: mirror}
tables: {"public.orders": {targets: [{kind: changelog}]}}
```

<!-- Generated from service/sluice/settings/model.py by `make docs`; `make check` compares. -->

| key | default | limits | meaning | environment |
|---|---|---|---|---|"""

_OF_TABLES = """
## Settings of a table

They are below `tables`, under the name of the table at the source: `tables: {"public.orders":
{on_change: stop}}`. No variable sets them. A setting without a default is as for the whole pipeline.

| key | default | limits | meaning |
|---|---|---|---|"""
_OF_TARGETS = """
### Targets

Each item of `targets` is one lake table ([targets](how-to/targets.md)).

| key | default | limits | meaning |
|---|---|---|---|"""
_OF_RULES = """
### Column rules

A rule in `columns` is `exclude`, `include`, or one of the forms with these keys ([column
rules](how-to/column-rules.md)): `hash` with `key_file`, `mask`, or `truncate`.

| key | default | limits | meaning |
|---|---|---|---|"""
