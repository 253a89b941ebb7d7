"""LSNs as text: however many digits a server prints, they are numbers here."""

import pytest

from sluice import lsn
from sluice.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0/17841D0", 0x17841D0),
        ("0/017841D0", 0x17841D0),
        ("1/0", 1 << 32),
        ("1/00000000", 1 << 32),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1),
    ],
)
def test_padded_and_unpadded_text_is_one_position(text: str, value: int) -> None:
    """19 pads the lower half to eight digits."""
    assert lsn.parse(text) == value


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "0/G", "0/1/2", "-1/0", "0/123456789"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an LSN"):
        lsn.parse(text)


@pytest.mark.parametrize("value", [0, 1, 0xFFFFFFFF, 1 << 32, 0x1_0178_41D0])
def test_what_is_shown_reads_back(value: int) -> None:
    assert lsn.parse(lsn.show(value)) == value
