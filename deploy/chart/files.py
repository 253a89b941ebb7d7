"""Which of the chart's files are generated, as text by path from the repository's root."""

import json
from pathlib import Path

from deploy.chart import readme, schema, values

CHART = Path("helm/sluice")


def generated(root: Path) -> dict[Path, str]:
    """Every generated file and its text, from the chart below `root` and the service's settings."""
    found = values.read(root / CHART / "values.yaml")
    return {
        CHART / "README.md": readme.page(found),
        CHART / "values.schema.json": json.dumps(schema.document(found), indent=1) + "\n",
    }
