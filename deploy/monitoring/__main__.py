"""`python -m deploy.monitoring` writes every generated file of alerts, dashboards and runbooks
again, and removes what is no longer generated.
"""

from pathlib import Path

from deploy.monitoring.files import generated, is_ours

ROOT = Path(__file__).parents[2]


def main() -> None:
    wanted = generated()
    for folder in {path.parent for path in wanted}:
        for present in (ROOT / folder).glob("*"):
            if is_ours(present.relative_to(ROOT)) and present.relative_to(ROOT) not in wanted:
                present.unlink()
    for path, text in wanted.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
