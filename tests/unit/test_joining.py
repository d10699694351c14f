"""Late join in every order: live streams that open before or after each other, an image taken and received at any
time."""

import random
from collections import deque
from collections.abc import Callable

import msgspec
import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.client.config import ClientConfig
from penstock.client.joining import Begun, Joining
from penstock.client.service import Image, place
from penstock.middleware import Merged, MergedBatch, MergeGap, Merger, StreamKey
from penstock.middleware.unicast import Position
from penstock.security.core.brokering import StreamAddress
from penstock.wire import Extension, PacketMessage, decode_origin
from unit.merge_kit import announcement, deliver, end, message

SOURCE, TERM = 7, 1
OURS = (1, 3, 4, 8, 9, 11)
"""Numbers with requested topics."""

CONFIG = ClientConfig(image_attempts_max=1_000)


def address_of(publisher_id: int) -> StreamAddress:
    return StreamAddress(
        adapter=f"adapter-{publisher_id}",
        role="active",
        publisher_id=publisher_id,
        transport="tcp",
        service_host="127.0.0.1",
        service_port=publisher_id,
    )


class Adapter:
    """Publishes 1, 2, 3 …; packets of its live connection wait until the test delivers them."""

    def __init__(self, publisher_id: int, cuts: int) -> None:
        self.address = address_of(publisher_id)
        self.key = StreamKey(publisher_id, 0)
        self.published = 0
        self.connection = 0
        self.is_open = False
        self.cuts = cuts
        self.wire: deque[int | Begun | None] = deque()

    def publish(self) -> None:
        self.published += 1
        if self.is_open and self.published in OURS:
            self.wire.append(self.published)

    def open(self) -> None:
        self.connection += 1
        self.is_open = True
        self.wire.append(Begun(self.connection, self.key.publisher_id))

    def cut(self) -> None:
        self.cuts -= 1
        self.is_open = False
        self.wire.append(None)


class World:
    """Adapters and a subscriber; `actions` are the possible next steps."""

    def __init__(self, adapter_count: int, message_count: int, cuts: int = 0) -> None:
        self.adapters = [Adapter(number + 1, cuts) for number in range(adapter_count)]
        self.message_count = message_count
        self.merger = Merger()
        joining = Joining(self.merger, CONFIG, "feed")
        self.joining: Joining | None = joining
        self.live: dict[StreamAddress, Begun] = {}
        self.asked: list[StreamAddress] = []
        self.image: Image | None = None
        self.joined_at = -1
        self.is_cut_off = False  # a connection was already broken when the image was joined, and this was not known yet
        self.told: list[PacketMessage | MergeGap] = []
        self._ask(joining)

    def actions(self) -> list[Callable[[], None]]:
        able: list[Callable[[], None]] = []
        for adapter in self.adapters:
            if adapter.published < self.message_count:
                able.append(adapter.publish)
            if not adapter.is_open:
                able.append(adapter.open)
            elif adapter.cuts and self.joining is not None:
                able.append(adapter.cut)
            if adapter.wire:
                able.append(lambda adapter=adapter: self._receive(adapter))
        if self.asked:
            able.append(self._take_image)
        if self.image is not None:
            able.append(self._receive_image)
        return able

    def _receive(self, adapter: Adapter) -> None:
        said = adapter.wire.popleft()
        answers = []
        if isinstance(said, Begun):
            self.live[place(adapter.address)] = said
        elif said is None:
            del self.live[place(adapter.address)]
            answers = end(self.merger, adapter.key)
        else:
            answers = self.merger.handle(deliver(adapter.key, [message(said)]), 0)
        if self.joining is None:
            self._tell(outcomes_of(answers))
            return
        self.joining.keep(outcomes_of(answers))
        self._ask(self.joining)

    def _ask(self, joining: Joining) -> None:
        if not self.asked and self.image is None:
            self.asked = joining.ask([each.address for each in self.adapters], self.live, 0)

    def _take_image(self) -> None:
        adapter = next(each for each in self.adapters if each.address == self.asked[0])
        self.asked = []
        self.image = Image([], [Position(SOURCE, TERM, adapter.published)], adapter.address)

    def _receive_image(self) -> None:
        image, self.image = self.image, None
        assert image is not None
        assert self.joining is not None
        if not self.joining.fits(image, self.live):
            self._ask(self.joining)
            return
        joining, self.joining = self.joining, None
        self.joined_at = image.positions[0].message_sequence
        self.is_cut_off = any(None in each.wire for each in self.adapters)
        self._tell(joining.kept_after(image))
        for start in joining.starts(image):
            self._tell(outcomes_of(self.merger.handle(start, 0)))

    def _tell(self, outcomes: list[list[PacketMessage] | MergeGap]) -> None:
        for each in outcomes:
            self.told += each if isinstance(each, list) else [each]

    def check(self, order: object) -> None:
        """Check: the image, then exactly the updates after it; losses of a broken connection are reported in their
        position."""
        assert self.joining is None, order
        wanted = [each for each in OURS if self.joined_at < each <= self.message_count]
        if self.is_cut_off:
            lost = {
                number for gap in self.told if isinstance(gap, MergeGap) for number in range(gap.first, gap.last + 1)
            }
            wanted = [each for each in wanted if each not in lost]
        assert numbers_of(self.told) == wanted, (order, self.joined_at, self.told)


def outcomes_of(answers: list) -> list[list[PacketMessage] | MergeGap]:
    return [
        list(each.messages) if isinstance(each, Merged | MergedBatch) else each
        for each in answers
        if isinstance(each, Merged | MergedBatch | MergeGap)
    ]


def numbers_of(told: list[PacketMessage | MergeGap]) -> list[int]:
    messages = [each for each in told if isinstance(each, PacketMessage)]
    return [decode_origin(each.extensions[Extension.ORIGIN]).message_sequence for each in messages]


@pytest.mark.spec("SUB-5")
def test_in_any_order_an_image_is_followed_by_exactly_the_later_updates() -> None:
    """Every order of the steps of one adapter."""
    orders, joined_at = [[]], set()
    while orders:
        order = orders.pop()
        world = World(1, 4)
        for choice in order:
            world.actions()[choice]()
        actions = world.actions()
        orders += [[*order, choice] for choice in range(len(actions))]
        if not actions:
            world.check(order)
            assert world.merger.counters["messages_lost"] == 0, order
            joined_at.add(world.joined_at)
    assert joined_at == {0, 1, 2, 3, 4}


@pytest.mark.spec("SUB-5")
@pytest.mark.parametrize("cuts", [0, 2])
def test_the_same_holds_for_adapters_ahead_of_each_other_and_for_broken_connections(cuts: int) -> None:
    for seed in range(2_000):
        chance = random.Random(seed)
        world = World(2, 9, cuts)
        for world.message_count in (9, 11):  # the last message reveals the missing ones before it
            while actions := world.actions():
                chance.choice(actions)()
        world.check(seed)
        if not cuts:
            assert world.merger.counters["messages_lost"] == 0, seed


def test_images_are_requested_only_after_a_live_stream_has_begun_and_only_from_its_adapter() -> None:
    joining = Joining(Merger(), CONFIG, "feed")
    a, b = address_of(1), address_of(2)
    assert joining.ask([a, b], {}, 0) == []
    assert joining.ask([a, b], {place(b): Begun(1, 2)}, 0) == [b]
    assert joining.ask([a, b], None, 0) == [a, b]


def test_an_image_is_discarded_when_its_adapter_was_reconnected_in_between() -> None:
    joining = Joining(Merger(), CONFIG, "feed")
    a = address_of(1)
    image = Image([], [Position(SOURCE, TERM, 10)], a)
    joining.ask([a], {place(a): Begun(1, 1)}, 0)
    assert not joining.fits(image, {place(a): Begun(2, 1)})
    assert not joining.fits(image, {})
    assert joining.fits(image, {place(a): Begun(1, 1)})
    backup = msgspec.structs.replace(a, role="backup")
    assert joining.fits(msgspec.structs.replace(image, address=backup), {place(a): Begun(1, 1)})


def test_a_repeated_announcement_before_the_image_changes_nothing() -> None:
    merger = Merger()
    joining = Joining(merger, CONFIG, "feed")
    a = address_of(1)
    live = {place(a): Begun(1, 1)}
    merger.handle(deliver(StreamKey(1, 0), [announcement(2, TERM, is_repeated=True)]), 0)
    joining.ask([a], live, 0)
    image = Image([], [Position(SOURCE, TERM, 5)], a)
    assert joining.fits(image, live)
    for start in joining.starts(image):
        merger.handle(start, 0)
    (told,) = outcomes_of(merger.handle(deliver(StreamKey(1, 0), [message(9)]), 0))
    assert isinstance(told, list)
    assert numbers_of([*told]) == [9]
    assert merger.counters["messages_lost"] == 0


def test_an_adapter_without_an_image_is_asked_again_after_a_pause_for_a_bounded_time() -> None:
    joining = Joining(Merger(), ClientConfig(image_attempts_max=2, reconnect_s=1.0), "feed")
    a = address_of(1)
    assert joining.ask([a], None, 0) == [a]
    joining.fail(0)
    assert joining.ask([a], None, NS_PER_SECOND - 1) == []
    assert joining.ask([a], None, NS_PER_SECOND) == [a]
    with pytest.raises(PenstockError, match="no adapter sent an image"):
        joining.ask([a], None, NS_PER_SECOND)


def test_an_image_from_before_skipped_messages_is_discarded() -> None:
    joining = Joining(Merger(), CONFIG, "feed")
    sealed_before = message(5)
    stream_id = decode_origin(sealed_before.extensions[Extension.ORIGIN]).stream_id
    joining.ask([address_of(1)], None, 0)
    joining.pass_over(sealed_before)
    joining.pass_over(PacketMessage("t", b"without an origin"))
    fits = [joining.fits(Image([], [Position(stream_id, TERM, at)], address_of(1)), None) for at in (4, 5, 6)]
    assert fits == [False, True, True]
