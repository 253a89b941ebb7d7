"""The page about the configuration."""

from pydantic import BaseModel

from sluice.settings.columns import FORMS
from sluice.settings.display import page
from sluice.settings.tables import TableSettings
from sluice.settings.targets import TargetSettings


def test_every_setting_of_a_table_and_of_a_target_is_on_the_page() -> None:
    sections: list[type[BaseModel]] = [TableSettings, TargetSettings, *FORMS.values()]
    text = page()
    of_tables = text[text.index("## Settings of a table") :]
    assert [name for one in sections for name in one.model_fields if f"\n| `{name}` |" not in of_tables] == []


def test_the_page_says_between_which_values_a_setting_may_be() -> None:
    rows = {line.split("|")[1].strip(" `"): line.split("|")[2:4] for line in page().splitlines() if line[:3] == "| `"}
    assert rows["lake.log_retention"] == [" `1h` ", " `10m` to `365d` "]
    assert rows["apply.max_memory"] == [" `256MiB` ", " at least `16MiB` "]
    assert rows["apply.freshness"] == [" `2s` ", " `0` to `4m` "]
    assert rows["telemetry.token_path"] == ["  ", "  "]
