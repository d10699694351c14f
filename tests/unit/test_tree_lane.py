"""The lane moves frames between real sockets."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError
from penstock.tree.core.kernel._fanout import Brings, Fanout
from penstock.tree.core.kernel.notices import ControlFrame, LeftLive, LinkEnded, NewerTerm, Notice
from penstock.tree.live._lane import Lane
from tree_kit import TREE_ID, block, packet

PARENT = 1
ALL = [([">"], None)]
SECOND_NS = 1_000_000_000
WORD = b"\x07\x00\x00\x00\x80a word"


class Rig:
    """A fan-out with a lane that a thread runs, and the far ends of its sockets."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.fanout = Fanout(TREE_ID, history_size=4 * 1024 * 1024, queue_packets_max=2_000)
        self.fanout.open_stream(1, term=1)
        self.lane = Lane(self.fanout)
        self._near: dict[int, socket.socket] = {}
        self._notices: list[Notice] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        stack.callback(self._stop)

    def connect(self, link: int, *, brings: int = 0, wants: bool = False) -> socket.socket:
        near, far = socket.socketpair()
        self._stack.enter_context(far)
        near.setblocking(False)
        far.settimeout(20)
        self._near[link] = near
        self.fanout.open_link(link, brings=brings)
        if wants:
            self.fanout.open_leg(link, 1, 1, ALL, is_live=True)
        self.lane.open(link, near.fileno())
        return far

    def disconnect(self, link: int) -> None:
        self.lane.close(link)
        self.fanout.close_link(link)
        self._near.pop(link).close()

    def notice(self, kind: type[Notice]) -> Notice:
        """Wait for the first event of this kind."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(isinstance(each, kind) for each in self._notices), 20)
            found = next(each for each in self._notices if isinstance(each, kind))
            self._notices.remove(found)
            return found

    def _run(self) -> None:
        while not self._is_over:
            if self.lane.run(SECOND_NS):
                with self._changed:
                    self._notices += self.fanout.notices()
                    self._changed.notify_all()

    def _stop(self) -> None:
        self._is_over = True
        self.lane.wake()
        self._thread.join(20)
        for link in list(self._near):
            self.disconnect(link)


@contextmanager
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            break
        data += more
    return bytes(data)


@pytest.mark.spec("TREE-1")
def test_packets_go_to_all_children_in_order() -> None:
    with rig() as each:
        parent = each.connect(PARENT, brings=Brings.PACKETS)
        children = [each.connect(number, wants=True) for number in range(2, 6)]
        packets = [packet(number, payload=bytes(number % 300)) for number in range(1, 3_001)]
        received: dict[int, bytes] = {}
        total = len(b"".join(packets))

        def listen(index: int) -> None:
            found = b""
            while len(unframed_whole(found)) < total:
                found += children[index].recv(65_536)
            received[index] = unframed_whole(found)

        threads = [threading.Thread(target=listen, args=(index,)) for index in range(len(children))]
        for thread in threads:
            thread.start()
        chance = random.Random(1)
        stream = b"".join(block(*packets[at : at + 100]) for at in range(0, len(packets), 100))
        while stream:
            size = chance.randint(1, 20_000)
            parent.sendall(stream[:size])
            stream = stream[size:]
        for thread in threads:
            thread.join(20)
        assert all(received[index] == b"".join(packets) for index in range(len(children)))


def unframed_whole(data: bytes) -> bytes:
    """The packets of frames; the last frame may be truncated."""
    packets = []
    at = 0
    while at + 4 <= len(data) and at + 4 + int.from_bytes(data[at : at + 4], "little") <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        packets.append(data[at + 16 : at + 4 + length])
        at += 4 + length
    return b"".join(packets)


@pytest.mark.spec("TREE-10")
def test_a_child_that_does_not_read_does_not_affect_its_siblings() -> None:
    with rig() as each:
        parent = each.connect(PARENT, brings=Brings.PACKETS)
        reader = each.connect(2, wants=True)
        each.connect(3, wants=True)
        for first in range(1, 20_001, 100):
            packets = [packet(number, payload=bytes(100)) for number in range(first, first + 100)]
            parent.sendall(block(*packets))
            got = b""
            while len(got) < len(b"".join(packets)):
                length = int.from_bytes(read(reader, 4), "little")
                got += read(reader, length)[12:]
            assert got == b"".join(packets)
        left = each.notice(LeftLive)
        assert isinstance(left, LeftLive)
        assert left.link == 3
        assert each.fanout.link(3).packets_out == left.through


def test_a_control_message_wakes_the_lane() -> None:
    with rig() as each:
        child = each.connect(2)
        for _ in range(50):
            each.fanout.say(2, WORD)
            assert read(child, len(WORD)) == WORD


def test_a_sender_that_has_corked_the_lane_sends_by_itself_and_a_larger_queue_wakes_the_lane() -> None:
    with rig() as each:
        children = [each.connect(link) for link in range(2, 152)]
        each.lane.cork()
        for link in range(2, 152):
            each.fanout.say(link, WORD)
        each.lane.send()
        for child in children:
            assert read(child, len(WORD)) == WORD
        each.fanout.say(2, WORD)
        assert read(children[0], len(WORD)) == WORD


def test_corked_messages_wait_for_their_sender() -> None:
    fanout = Fanout(TREE_ID)
    lane = Lane(fanout)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        fanout.open_link(2)
        lane.open(2, near.fileno())
        lane.cork()
        fanout.say(2, WORD)
        with pytest.raises(BlockingIOError):
            far.recv(100)
        lane.send()
        assert far.recv(100) == WORD
        lane.close(2)


def test_control_frames_and_ends_are_reported() -> None:
    with rig() as each:
        child = each.connect(2)
        child.sendall(WORD)
        assert each.notice(ControlFrame) == ControlFrame(2, WORD[4:])
        child.shutdown(socket.SHUT_WR)
        ended = each.notice(LinkEnded)
        assert isinstance(ended, LinkEnded)
        assert (ended.link, ended.cause) == (2, Cause.CLOSED)
        each.fanout.say(2, WORD)
        assert read(child, len(WORD)) == WORD
        each.disconnect(2)
        assert child.recv(10) == b""


def test_a_truncated_frame_is_reported() -> None:
    with rig() as each:
        child = each.connect(2)
        child.sendall(WORD[:6])
        child.close()
        ended = each.notice(LinkEnded)
        assert isinstance(ended, LinkEnded)
        assert ended.cause is Cause.CUT


def test_nothing_is_read_before_the_core_knows_the_term() -> None:
    with rig() as each:
        parent = each.connect(PARENT, brings=Brings.PACKETS)
        child = each.connect(2, wants=True)
        parent.sendall(block(packet(1), packet(2, term=2)))
        parent.sendall(block(packet(3, term=2)))
        assert each.notice(NewerTerm) == NewerTerm(PARENT, 1, 2, 2)
        with each.fanout:
            each.fanout.set_stream(1, term=2, last=1)
            each.fanout.resume(PARENT)
        expected = packet(1) + packet(2, term=2) + packet(3, term=2)
        got = b""
        while len(got) < len(expected):
            length = int.from_bytes(read(child, 4), "little")
            got += read(child, length)[12:]
        assert got == expected


def test_links_are_added_and_removed_while_data_flows() -> None:
    with rig() as each:
        parent = each.connect(PARENT, brings=Brings.PACKETS)
        is_over = threading.Event()

        def publish() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                parent.sendall(block(packet(number)))

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            for link in range(2, 200):
                child = each.connect(link, wants=True)
                if link % 2:
                    assert read(child, 16)
                each.disconnect(link)
        finally:
            is_over.set()
            thread.join(20)


def test_invalid_calls_of_a_lane_are_refused() -> None:
    with rig() as each:
        child = each.connect(2)
        with pytest.raises(LocalProtocolError):
            each.lane.open(2, child.fileno())
        with pytest.raises(LocalProtocolError):
            Lane(each.fanout)
        with pytest.raises(LocalProtocolError):
            each.fanout.take(2, 100)
        with pytest.raises(LocalProtocolError):
            each.fanout.close_link(2)
        with pytest.raises(LocalProtocolError):
            each.lane.open(9, child.fileno())
        each.lane.close(9)
