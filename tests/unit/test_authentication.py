"""Authentication trailers: packets that are not authentic change nothing and are counted."""

import random
from itertools import product

import numpy
import pytest

from interop import siphash_reference
from interop.siphash_reference import siphash_128
from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError
from penstock.middleware import (
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    Multicast,
    MulticastStored,
    OutgoingMessage,
    Publish,
    Publisher,
    PublisherConfig,
    Receiver,
    ReceiverConfig,
    Unicast,
)
from penstock.wire import (
    MESSAGE_DTYPE,
    TRAILER_SIZE,
    AuthenticationKey,
    AuthenticationScope,
    Authenticator,
    DatagramBatch,
    LeaseFlag,
    Packer,
    PacketFlag,
    PacketStore,
    VouchedPublisher,
    decode,
    encode_gone,
    encode_nack,
)
from penstock.wire._authentication import packet_tag, packet_tags, siphash, source_key, trailer_under
from unit.authentication_kit import KEY, NEXT_KEY, authentic, scope
from unit.middleware_kit import GROUP, MS, PUBLISHER_ID, SOURCE, NoRandomness, packets

STRANGER = ("10.0.0.66", 6_666)


def batch_of(*datagrams: bytes, source: tuple[str, int] = SOURCE) -> DatagramBatch:
    batch = DatagramBatch(64)
    for each in datagrams:
        batch.append(each, source)
    return batch


def receiver(*scopes: AuthenticationScope, **config: object) -> Receiver:
    authenticator = Authenticator(scopes or [scope()])
    chosen = ReceiverConfig(nack_delay_us=0, **config)  # type: ignore[arg-type]
    return Receiver(chosen, NoRandomness(), authenticator=authenticator)


def contents(instructions: list[object]) -> list[bytes]:
    delivered = [each for each in instructions if isinstance(each, Deliver | DeliverBatch)]
    return [bytes(message.payload) for each in delivered for message in each.messages]


def test_siphash_matches_the_published_vectors() -> None:
    """Vectors of the reference implementation: the key is 00 to 0f, input n is the bytes 00 to n - 1."""
    key = bytes(range(16))
    assert siphash(b"", key).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(b"\x00", key).hex() == "da87c1d86b99af44347659119b22fc45"
    assert siphash(bytes(range(8)), key).hex() == siphash_128(bytes(range(8)), key).hex()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 63, 64, 255, 256, 1_496])
def test_siphash_agrees_with_an_independent_implementation(size: int) -> None:
    data, key = bytes(at * 7 & 0xFF for at in range(size)), bytes(range(100, 116))
    assert siphash(data, key) == siphash_128(data, key)


@pytest.mark.parametrize("size", [56, 255, 256, 257, 287, 288, 319, 1_024, 1_496, 8_980, 65_507])
def test_tags_agree_with_an_independent_implementation(size: int) -> None:
    data, key = bytes((at * 7 ^ at >> 8) & 0xFF for at in range(size)), bytes(range(100, 116))
    assert packet_tag(data, key) == siphash_reference.packet_tag(data, key)


@pytest.mark.parametrize(("size", "other"), [*product([56, 255, 256, 289, 1_024, 8_980], repeat=2)])
def test_a_pair_of_tags_equals_the_tags_of_each_packet(size: int, other: int) -> None:
    key, chance = bytes(range(100, 116)), random.Random(size * 10_000 + other)
    packets = chance.randbytes(size), chance.randbytes(other)
    expected = tuple(siphash_reference.packet_tag(each, key) for each in packets)
    assert packet_tags(*packets, key) == expected


def test_a_key_has_sixteen_bytes_and_an_id() -> None:
    with pytest.raises(LocalProtocolError, match="16 bytes, not 3"):
        Authenticator([scope(AuthenticationKey(1, b"abc"))])
    with pytest.raises(LocalProtocolError, match="key id 0"):
        Authenticator([scope(AuthenticationKey(0, bytes(16)))])
    with pytest.raises(LocalProtocolError, match="duplicate authentication key"):
        Authenticator([scope(KEY, KEY)])


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("is_batch", [False, True])
def test_authentic_packets_are_delivered_without_their_trailers(is_batch: bool) -> None:
    core = receiver()
    datagrams = [authentic(each) for each in packets(3)]
    if is_batch:
        answers = core.handle(DatagramsReceived(batch_of(*datagrams)), 0)
    else:
        answers = [told for each in datagrams for told in core.handle(DatagramReceived(each, SOURCE), 0)]
    assert contents(answers) == [b"1", b"2", b"3"]
    assert {len(each.data) for each in answers if isinstance(each, Deliver)} <= {len(packets(1)[0])}


def _spoiled(datagram: bytes, at: int) -> bytes:
    return datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :]


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda packet: packet, Cause.UNAUTHENTICATED),
        (lambda packet: packet[:20], Cause.UNAUTHENTICATED),
        (lambda packet: b"", Cause.UNAUTHENTICATED),
        (lambda packet: packet + bytes(TRAILER_SIZE), Cause.UNAUTHENTICATED),
        (lambda packet: authentic(packet) + b"x", Cause.UNAUTHENTICATED),
        (lambda packet: authentic(packet, NEXT_KEY), Cause.UNKNOWN_KEY),
        (lambda packet: authentic(packet, AuthenticationKey(KEY.key_id, bytes(16))), Cause.FORGED),
        (lambda packet: _spoiled(authentic(packet), 60), Cause.FORGED),
        (lambda packet: _spoiled(authentic(packet), len(packet) + 3), Cause.FORGED),
        (lambda packet: _spoiled(authentic(packet), len(packet) + TRAILER_SIZE - 1), Cause.FORGED),
    ],
)
def test_a_packet_that_is_not_authentic_is_counted(make: object, cause: Cause, is_batch: bool) -> None:
    core = receiver()
    datagram = make(packets(1)[0])  # type: ignore[operator]
    event = DatagramsReceived(batch_of(datagram)) if is_batch else DatagramReceived(datagram, SOURCE)
    assert core.handle(event, 0) == []
    assert core.counters.by_cause("packets_dropped") == {cause: 1}
    assert core.streams() == []


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("epoch", [1, 4, 2**32 - 1])
def test_epochs_without_a_registration_are_refused(epoch: int) -> None:
    core = receiver(scope(first=2, last=3))
    for vouched in (2, 3):
        answers = core.handle(DatagramReceived(authentic(packets(1, epoch=vouched)[0]), SOURCE), 0)
        assert contents(answers) == [b"1"]
    assert core.handle(DatagramReceived(authentic(packets(1, epoch=epoch)[0]), SOURCE), 0) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.UNVOUCHED: 1}


@pytest.mark.spec("AUTH-2")
def test_a_key_is_valid_only_for_the_publishers_of_its_scope() -> None:
    other = AuthenticationScope("other", (NEXT_KEY,), NEXT_KEY.key_id, (VouchedPublisher(43, 1, 1),))
    core = receiver(scope(), other)
    stolen = packets(1)[0] + Authenticator([scope(NEXT_KEY)]).trailer(packets(1)[0])
    assert core.handle(DatagramReceived(stolen, SOURCE), 0) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.UNVOUCHED: 1}


def _any_datagram(chance: random.Random) -> bytes:
    """A packet of any length under one of two keys, mostly as it was sent."""
    packer = Packer(PUBLISHER_ID, GROUP, 1)
    packer.add("t", bytes(chance.choice([1, 100, 200, 230, 1_000, 1_300])))
    packet = packer.flush()
    assert packet is not None
    datagram = authentic(packet, chance.choice([KEY, NEXT_KEY]))
    if chance.random() < 0.3:
        datagram = _spoiled(datagram, chance.randrange(len(datagram)))
    return datagram if chance.random() < 0.9 else datagram[: chance.randrange(len(datagram))]


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("seed", range(200))
def test_a_batch_accepts_the_same_packets_as_single_calls(seed: int) -> None:
    """Tags of neighbours are computed together."""
    chance = random.Random(seed)
    datagrams = [_any_datagram(chance) for _ in range(chance.randrange(1, 16))]
    together, singly = Authenticator([scope(KEY, NEXT_KEY)]), Authenticator([scope(KEY, NEXT_KEY)])
    batch = batch_of(*datagrams)
    together.admit_batch(batch)
    checked = [singly.check(each, SOURCE) for each in datagrams]
    assert [bytes(batch.datagram(at)) for at in range(len(batch))] == [
        bytes(each) for each in checked if each is not None
    ]
    for cause in ("unauthenticated", "unknown_key", "unvouched", "forged"):
        assert getattr(together, cause) == getattr(singly, cause), cause


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("sequence", [3, 4, 1_000, 2**63, 2**64 - 1])
def test_forged_packets_between_authentic_ones_change_nothing(sequence: int) -> None:
    core = receiver()
    first, second, third, fourth = (authentic(each) for each in packets(4))
    forged = packets(1, first=sequence)[0] if sequence < 2**64 - 1 else packets(1)[0]
    goodbye = packets(1, first=3, flags=PacketFlag.GOODBYE)[0]
    gone = encode_gone(PUBLISHER_ID, GROUP, 1, [(3, 4)])
    heard = contents(core.handle(DatagramsReceived(batch_of(first, forged, second, goodbye, gone)), 0))
    heard += contents(core.handle(DatagramsReceived(batch_of(forged, third, forged, fourth)), 0))
    assert heard == [b"1", b"2", b"3", b"4"]
    assert core.counters.by_cause("packets_dropped") == {Cause.UNAUTHENTICATED: 5}
    assert core.counters["packets_lost"] == 0


@pytest.mark.spec("AUTH-1")
def test_old_and_new_keys_are_valid_together_during_a_rotation() -> None:
    core = receiver(scope(KEY))
    authenticator = core.in_order.authenticator
    assert authenticator is not None
    old, new, late, last = packets(4)
    assert contents(core.handle(DatagramReceived(authentic(old, KEY), SOURCE), 0)) == [b"1"]
    authenticator.use([scope(KEY, NEXT_KEY)])
    assert contents(core.handle(DatagramReceived(authentic(new, NEXT_KEY), SOURCE), 0)) == [b"2"]
    assert contents(core.handle(DatagramReceived(authentic(late, KEY), SOURCE), 0)) == [b"3"]
    authenticator.use([scope(NEXT_KEY)])
    assert core.handle(DatagramReceived(authentic(last, KEY), SOURCE), 0) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.UNKNOWN_KEY: 1}


def authenticated_publisher(**config: object) -> Publisher:
    chosen = PublisherConfig(**config)  # type: ignore[arg-type]
    made = Publisher(PUBLISHER_ID, 1, chosen, is_authenticated=True)
    made.authenticate([KEY], KEY.key_id)
    return made


@pytest.mark.spec("AUTH-6")
def test_a_publisher_whose_lease_has_ended_answers_no_requests() -> None:
    lease = LeaseFlag(has_ended=False)
    publisher = Publisher(PUBLISHER_ID, 1, PublisherConfig(), is_authenticated=True, lease=lease)
    publisher.authenticate([KEY], KEY.key_id)
    publisher.handle(Publish(GROUP, (OutgoingMessage("t", b"1"),)), 0)

    def repairs(number: int) -> list[bytes]:
        request = authentic(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 1)], requester=7, number=number))
        return sent(publisher.handle(DatagramReceived(request, SOURCE), number * 10 * MS))

    assert len(repairs(1)) == 1
    lease.has_ended = True
    assert repairs(2) == []
    assert publisher.counters.by_cause("packets_dropped") == {Cause.LEASE_ENDED: 1}
    lease.has_ended = False
    assert len(repairs(2)) == 1


def sent(instructions: list[object]) -> list[bytes]:
    found: list[bytes] = []
    for each in instructions:
        if isinstance(each, MulticastStored):
            numbers = range(each.first, each.last + 1)
            found += [each.store.get(number) + each.store.trailer(number) for number in numbers]
        elif isinstance(each, Multicast | Unicast):
            found.append(each.data)
    return found


@pytest.mark.spec("AUTH-1")
def test_publisher_and_receiver_exchange_data_requests_repairs_and_goodbye() -> None:
    publisher, core = authenticated_publisher(), receiver(join="start")
    datagrams = []
    for number in (1, 2, 3):
        message = OutgoingMessage("t", str(number).encode())
        datagrams += sent(publisher.handle(Publish(GROUP, (message,)), 0))
    heard = contents(core.handle(DatagramsReceived(batch_of(datagrams[0], datagrams[2])), 0))
    (request,) = sent(core.handle(Tick(), MS))
    forged = encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 3)])
    assert publisher.handle(DatagramReceived(forged, STRANGER), MS) == []
    assert publisher.counters.by_cause("packets_dropped") == {Cause.UNAUTHENTICATED: 1}
    repairs = sent(publisher.handle(DatagramReceived(request, SOURCE), MS))
    assert len(repairs) == 1
    assert decode(repairs[0][:-TRAILER_SIZE]).flags & PacketFlag.REPAIR
    heard += contents(core.handle(DatagramReceived(repairs[0], SOURCE), MS))
    assert heard == [b"1", b"2", b"3"]
    assert core.counters["packets_dropped"] == 0


@pytest.mark.spec("AUTH-1")
def test_packets_sent_before_the_first_key_are_repaired_once_there_is_a_key() -> None:
    publisher = Publisher(PUBLISHER_ID, 1, PublisherConfig(), is_authenticated=True)
    core = receiver(join="start")
    first = sent(publisher.handle(Publish(GROUP, (OutgoingMessage("t", b"1"),)), 0))
    assert contents(core.handle(DatagramsReceived(batch_of(*first)), 0)) == []
    publisher.authenticate([KEY], KEY.key_id)
    second = sent(publisher.handle(Publish(GROUP, (OutgoingMessage("t", b"2"),)), 0))
    core.handle(DatagramsReceived(batch_of(*second)), 0)
    (request,) = sent(core.handle(Tick(), MS))
    repairs = sent(publisher.handle(DatagramReceived(request, SOURCE), MS))
    assert contents(core.handle(DatagramsReceived(batch_of(*repairs)), MS)) == [b"1", b"2"]


def test_a_packet_with_its_trailer_fits_the_configured_size() -> None:
    publisher = authenticated_publisher(packet_size_max=512)
    datagrams = sent(publisher.handle(Publish(GROUP, (OutgoingMessage("t", bytes(5_000)),)), 0))
    assert max(map(len, datagrams)) == 512


def test_without_keys_trailers_are_removed_unchecked() -> None:
    core = Receiver(ReceiverConfig(), NoRandomness())
    one, two = (authentic(each) for each in packets(2))
    assert contents(core.handle(DatagramsReceived(batch_of(one)), 0)) == [b"1"]
    assert contents(core.handle(DatagramReceived(two, SOURCE), 0)) == [b"2"]
    plain = Publisher(PUBLISHER_ID, 1, PublisherConfig())
    plain.handle(Publish(GROUP, (OutgoingMessage("t", b"1"),)), 0)
    request = authentic(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 1)]))
    assert len(plain.handle(DatagramReceived(request, SOURCE), 0)) == 1


@pytest.mark.parametrize("filter_address", [("10.0.0.9", 7), ("filter", 7)])
def test_trusted_addresses_need_no_trailer(filter_address: tuple[str, int]) -> None:
    core = receiver()
    authenticator = core.in_order.authenticator
    assert authenticator is not None
    authenticator.trust({filter_address: ()})
    one, two, three, four = packets(4)
    heard = contents(core.handle(DatagramsReceived(batch_of(one, authentic(two), source=filter_address)), 0))
    heard += contents(core.handle(DatagramReceived(three, filter_address), 0))
    assert heard == [b"1", b"2", b"3"]
    assert core.handle(DatagramReceived(four, STRANGER), 0) == []
    assert source_key(("10.0.0.9", 7)) == 0x0A000009_0007
    assert source_key(("filter", 7)) == 0


def test_a_batch_from_a_socket_identifies_trusted_addresses_by_their_numbers() -> None:
    """Numeric sources, as sockets give them, come in tests/integration/test_authentic_streams.py."""
    addresses = [(f"10.0.0.{number}", 1_000 + number) for number in range(1, 100)]
    authenticator = Authenticator([], trusted=dict.fromkeys(addresses, ()))
    assert authenticator.check(packets(1)[0], addresses[50]) is not None
    assert authenticator.check(packets(1)[0], STRANGER) is None


def test_a_store_keeps_trailers_beside_its_packets() -> None:
    store = PacketStore(4, 4_096, has_trailers=True)
    made = packets(6)
    store.authenticate(KEY)
    for each in made:
        store.keep(each)
    assert len(store) == 4
    for number in range(3, 7):
        assert store.get(number) + store.trailer(number) == authentic(made[number - 1])
    assert store.bytes_kept == sum(len(each) + TRAILER_SIZE for each in made[2:])
    with pytest.raises(LocalProtocolError, match="no room for trailers"):
        PacketStore(4, 4_096).authenticate(KEY)


@pytest.mark.parametrize("bytes_max", [4_000, 100_000])
@pytest.mark.parametrize("seed", range(20))
def test_batch_packed_messages_have_the_trailers_of_single_packets(seed: int, bytes_max: int) -> None:
    """Trailers of neighbours are written together."""
    chance = random.Random(seed)
    store = PacketStore(64, bytes_max, has_trailers=True)
    store.authenticate(KEY)
    for _ in range(5):
        rows = numpy.zeros(chance.randrange(1, 6), MESSAGE_DTYPE)
        rows["topic_size"] = 1
        rows["payload_size"] = [chance.choice([60, 300, 600]) for _ in rows]
        first = store.next_sequence
        count = store.pack(b"t", bytes(600), rows, publisher_id=7, group=8, epoch=1, packet_size_max=800)
        assert store.next_sequence == first + count
        for number in range(first, first + count):
            assert decode(store.get(number)).sequence == number
        for number in range(store.oldest, store.next_sequence):
            assert store.trailer(number) == trailer_under(store.get(number), KEY)
