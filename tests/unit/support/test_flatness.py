"""What counts as growth in a long run."""

import pytest

from tests.support.flatness import Bound, halves

BOUND = Bound(0.25, 1.0)


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        pytest.param([10.0] * 40, False, id="flat"),
        pytest.param([10.0, 14.0] * 20, False, id="a saw"),
        pytest.param([10.0] * 19 + [900.0] + [10.0] * 18 + [900.0] * 2, False, id="a few high values"),
        pytest.param([float(value) for value in range(40)], True, id="a line"),
        pytest.param([10.0] * 20 + [14.0] * 20, True, id="a step"),
        pytest.param([0.0] * 20 + [1.0] * 20, False, id="small"),
        pytest.param([40.0 - value for value in range(40)], False, id="it falls"),
    ],
)
def test_a_series_grows_when_its_second_half_lies_above_the_first(values: list[float], grows: bool) -> None:
    found = halves(values, BOUND)
    assert found is not None
    assert found.grows == grows


def test_of_three_values_nothing_is_said() -> None:
    assert halves([1.0, 2.0, 3.0], BOUND) is None
