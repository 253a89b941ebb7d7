"""`python -m deploy.chart` writes the chart's generated files again."""

import json
from collections.abc import Callable
from pathlib import Path

from deploy.chart import readme, schema, values

CHART = Path("helm/sluice")
FILES: dict[str, Callable[[list[values.Value]], str]] = {
    "README.md": readme.page,
    "values.schema.json": lambda found: json.dumps(schema.document(found), indent=1) + "\n",
}


def write(root: Path) -> None:
    chart = root / CHART
    found = values.read(chart / "values.yaml")
    for name, make in FILES.items():
        (chart / name).write_text(make(found), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())
