import pytest

from penstock.base.clock import SystemClock, SystemRandomness
from penstock.base.errors import ConfigurationError
from penstock.base.ids import PUBLISHER_ID_MAX, format_group, parse_group, random_publisher_id


def test_groups_are_written_as_addresses() -> None:
    assert parse_group("239.1.2.3") == 0xEF010203
    assert format_group(0xEF010203) == "239.1.2.3"


@pytest.mark.parametrize("text", ["10.0.0.1", "239.1.2", "239.1.2.256", "", "quote", "::1", "240.0.0.0"])
def test_invalid_groups_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_group(text)


def test_random_publisher_ids_are_never_zero() -> None:
    class Lowest:
        def below(self, limit: int) -> int:
            return 0

    class Highest:
        def below(self, limit: int) -> int:
            return limit - 1

    assert random_publisher_id(Lowest()) == 1
    assert random_publisher_id(Highest()) == PUBLISHER_ID_MAX
    assert 1 <= random_publisher_id(SystemRandomness()) <= PUBLISHER_ID_MAX


def test_the_system_clock_does_not_go_backwards() -> None:
    clock = SystemClock()
    assert clock.now_ns() <= clock.now_ns()
    assert clock.wall_ns() > 1_600_000_000 * 10**9
