"""Frames from any thread to one socket: in order, shared in bursts, and bounded waits."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from penstock.net._link_writer import LinkWriter
from penstock.net.core.framing import FrameDecoder
from waiting import wait_until

LONG_US = 60_000_000


class Ends:
    """A socket with a writer, and its other end."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self._decoder = FrameDecoder(1_000_000)
        self.frames: list[bytes] = []
        self.writers: list[LinkWriter] = []

    def writer(self, linger_us: int) -> LinkWriter:
        self.writers.append(LinkWriter(self.ours.fileno(), linger_us))
        return self.writers[-1]

    def receive(self) -> int:
        """Take what is there; return the number of frames so far."""
        try:
            while data := self.theirs.recv(65_536):
                self.frames += self._decoder.feed(data)
        except BlockingIOError:
            pass
        return len(self.frames)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for each in made.writers:
        each.close()
    made.ours.close()
    made.theirs.close()


def frame(number: int, size: int = 4) -> bytes:
    return struct.pack("<II", size, number) + bytes(size - 4)


def numbers(frames: list[bytes]) -> list[int]:
    return [struct.unpack_from("<I", each)[0] for each in frames]


def fill_burst(ends: Ends, writer: LinkWriter) -> int:
    """Add frames until some wait; return their number. A busy machine may interrupt any of the bursts."""
    count = 0
    while count < 1_000_000:
        for _ in range(50):
            writer.add(frame(count))
            count += 1
            if writer.unsent:
                return count
        ends.receive()
    pytest.fail("no burst was noticed")


def test_a_frame_that_comes_alone_leaves_at_once(ends: Ends) -> None:
    writer = ends.writer(LONG_US)
    writer.add(frame(7))
    assert writer.unsent == 0
    assert ends.receive() == 1


def test_frames_of_a_burst_wait_until_flush(ends: Ends) -> None:
    writer = ends.writer(LONG_US)
    count = fill_burst(ends, writer)
    assert ends.receive() < count
    writer.flush()
    assert writer.unsent == 0
    assert ends.receive() == count
    assert numbers(ends.frames) == list(range(count))


def test_the_flusher_sends_what_waits(ends: Ends) -> None:
    writer = ends.writer(1_000)
    count = fill_burst(ends, writer)
    wait_until(lambda: ends.receive() == count, "the frames that waited")
    assert numbers(ends.frames) == list(range(count))


def test_write_sends_after_what_waits(ends: Ends) -> None:
    writer = ends.writer(LONG_US)
    count = fill_burst(ends, writer)
    writer.write(frame(count))
    assert ends.receive() == count + 1
    assert numbers(ends.frames) == list(range(count + 1))


def test_without_linger_no_frame_waits(ends: Ends) -> None:
    writer = ends.writer(0)
    for number in range(500):
        writer.add(frame(number))
        assert writer.unsent == 0
        assert ends.receive() == number + 1


def test_what_the_socket_does_not_take_is_sent_later(ends: Ends) -> None:
    writer = ends.writer(50)
    count = 0
    while not writer.unsent:
        writer.write(frame(count, 10_000))
        count += 1
    for _ in range(100):
        writer.add(frame(count, 10_000))
        count += 1
    wait_until(lambda: ends.receive() == count, "all frames")
    assert numbers(ends.frames) == list(range(count))
    assert {len(each) for each in ends.frames} == {10_000}


def test_frames_of_many_threads_stay_whole(ends: Ends) -> None:
    writer = ends.writer(50)
    threads = [
        threading.Thread(target=lambda first=first: [writer.add(frame(first + each, 40)) for each in range(1_000)])
        for first in range(0, 4_000, 1_000)
    ]
    for each in threads:
        each.start()
    wait_until(lambda: ends.receive() == 4_000, "all frames")
    for each in threads:
        each.join()
    found = numbers(ends.frames)
    assert sorted(found) == list(range(4_000))
    for first in range(0, 4_000, 1_000):
        own = [each for each in found if first <= each < first + 1_000]
        assert own == sorted(own)


def test_close_returns_what_was_not_sent(ends: Ends) -> None:
    writer = ends.writer(LONG_US)
    count = fill_burst(ends, writer)
    sent = ends.receive()
    rest = FrameDecoder(100).feed(writer.close())
    assert numbers(rest) == list(range(sent, count))
    writer.add(frame(9))
    assert writer.unsent == 0


def test_a_connection_that_has_ended_takes_everything(ends: Ends) -> None:
    writer = ends.writer(50)
    ends.theirs.close()
    for number in range(100):
        writer.write(frame(number))
    assert writer.unsent == 0
