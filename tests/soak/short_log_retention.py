"""`sluice` whose lake tables keep their log for a minute, so that a run of minutes sees what a week does.

`python -m tests.soak.short_log_retention ARGUMENTS...`. The configuration allows ten minutes at least.
"""

import json
from typing import Any

from sluice.cli import main, wiring

LOG_SECONDS = 60.0


def hasten() -> None:
    """Once per process, before anything has started."""
    made = wiring.apply_options

    def shortened(*arguments: Any, **named: Any) -> str:
        return json.dumps({**json.loads(made(*arguments, **named)), "log_retention_seconds": LOG_SECONDS})

    wiring.apply_options = shortened


if __name__ == "__main__":
    hasten()
    main()
