"""The file that preserves a root's newest packets across restarts."""

from pathlib import Path

import pytest

from penstock.base.errors import JournalError, LimitError
from penstock.tree.live.tail import Tail
from tree_kit import packet

HALF = 4_096


class Opened:
    """A tail, and the number of waits for the journals."""

    def __init__(self, path: Path) -> None:
        self.settled = 0
        self.tail = Tail(path, HALF, self._settle)

    def _settle(self) -> None:
        self.settled += 1

    def put(self, *packets: bytes) -> None:
        data = b"".join(packets)
        self.tail.make_room(len(data))
        self.tail.write(data)


def found(path: Path) -> list[int]:
    tail = Tail(path, HALF, lambda: None)
    try:
        return sorted(each.sequence for each in tail.packets())
    finally:
        tail.close()


def test_written_packets_are_found_after_a_crash(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "tail")
    opened.put(packet(1), packet(2))
    opened.put(packet(3))
    assert found(tmp_path / "tail") == [1, 2, 3], "closed or not"
    opened.tail.close()


def test_halves_are_written_alternately_once_their_packets_are_in_the_journals(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "tail")
    size = len(packet(1, payload=bytes(900)))
    a_half = (HALF - 64) // size
    for number in range(1, a_half + 1):
        opened.put(packet(number, payload=bytes(900)))
    assert opened.settled == 0
    opened.put(packet(a_half + 1, payload=bytes(900)))
    assert opened.settled == 1
    assert found(tmp_path / "tail") == list(range(1, a_half + 2)), "the first half is unchanged"
    for number in range(a_half + 2, 2 * a_half + 2):
        opened.put(packet(number, payload=bytes(900)))
    assert opened.settled == 2
    assert found(tmp_path / "tail") == list(range(a_half + 1, 2 * a_half + 2)), "and then overwritten"
    opened.tail.close()


def test_torn_or_damaged_packets_end_the_half(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    opened = Opened(path)
    opened.put(packet(1), packet(2), packet(3))
    opened.tail.close()
    data = bytearray(path.read_bytes())
    data[len(packet(1)) + 60] ^= 1
    path.write_bytes(data)
    assert found(path) == [1]
    data[8:12] = (2**31).to_bytes(4, "little")  # a size beyond the file
    path.write_bytes(data)
    assert found(path) == []


def test_oversized_writes_and_an_unwritable_file_are_refused(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "tail")
    with pytest.raises(LimitError, match="at once"):
        opened.tail.make_room(HALF)
    opened.tail.close()
    with pytest.raises(JournalError, match="cannot be made"):
        Tail(tmp_path / "nowhere" / "tail", HALF, lambda: None)


@pytest.mark.parametrize("half_size", [HALF // 2, 2 * HALF])
def test_a_change_of_the_half_size_loses_nothing(tmp_path: Path, half_size: int) -> None:
    opened = Opened(tmp_path / "tail")
    for number in range(1, 6):
        opened.put(packet(number, payload=bytes(900)))
    opened.tail.close()
    for _ in range(2):  # also if the process is killed before all packets were taken
        other = Tail(tmp_path / "tail", half_size, lambda: None)
        assert sorted(each.sequence for each in other.packets()) == [1, 2, 3, 4, 5]
        other.close()
    last = Tail(tmp_path / "tail", half_size, lambda: None)
    last.forget_others()
    assert list(last.packets()) == []
    last.close()
    assert [each.name for each in tmp_path.iterdir()] == ["tail"]
