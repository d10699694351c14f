"""Message models in the stream: when they are sent, in which packets, and how receivers use them."""

import pickle

import numpy
import pytest

from client_kit import Originated
from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConfigurationError, NotFoundError
from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.capture.live.reading import Models
from penstock.client.gate import Gate
from penstock.feed.adapter_config import PublishConfig
from penstock.feed.config import ServiceConfig
from penstock.feed.core.models_in_band import ModelsInBand
from penstock.feed.core.service.events import Recorded
from penstock.feed.core.service.published import PublishedBatch, Unpacker
from penstock.feed.live.outbound import Outbound
from penstock.middleware import (
    DatagramReceived,
    Deliver,
    Merger,
    Publisher,
    PublisherConfig,
    Receiver,
    ReceiverConfig,
)
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.middleware.unicast import Contribute, Contribution
from penstock.model import MessageModel, shipped
from penstock.net.udp import Channel
from penstock.security import Entitlement, Grant, Sealer, StreamKey
from penstock.wire import PacketMessage, PacketStore, decode
from unit.merge_kit import A, B, deliver, give, lose, messages_of, numbers_of
from unit.service_kit import PublishedStream, ServiceBench, receive, token

INTERVAL_NS = 10 * NS_PER_SECOND
MODELS = [shipped("quote"), shipped("trade")]
TEXTS = [model.text for model in MODELS]
KEY = StreamKey("itch", 7, bytes(range(32)))
OWN_TEXT = TEXTS[0].replace("id = 1\n", "id = 900\n").replace('name = "quote"', 'name = "own_quote"')
OWN = MessageModel.parse(OWN_TEXT)
SMALL = MessageModel.parse('id = 901\nname = "x"\nversion = 1\n[[field]]\nname = "y"\ntype = "i8"\n')


def nobody(model_id: int, version: int) -> MessageModel:
    raise NotFoundError(f"no model {model_id}")


def outbound(*models: MessageModel, is_sealed: bool = False) -> Outbound:
    publisher = Publisher(7, 1, PublisherConfig())
    cast = ModelsInBand(models, INTERVAL_NS)
    return Outbound(publisher, Channel(), None, now_ns=0, is_sealed=is_sealed, models=cast)


def packets_in(store: PacketStore) -> list[bytes]:
    return [store.get(sequence) for sequence in range(store.oldest, store.next_sequence)]


def received(packets: list[bytes]) -> list[PacketMessage]:
    """The result of a receiver, with reassembled messages."""
    receiver = Receiver(ReceiverConfig(join="start"), SystemRandomness())
    told = [each for data in packets for each in receiver.handle(DatagramReceived(data, ("127.0.0.1", 1)), 0)]
    messages = [message for each in told if isinstance(each, Deliver) for message in each.messages]
    return [message.with_payload(bytes(message.payload)) for message in messages]


def published(store: PacketStore) -> PublishedBatch:
    packets = packets_in(store)
    sizes = numpy.array([len(each) for each in packets], numpy.uint32)
    offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
    (batch,) = Unpacker().unpack(numpy.frombuffer(b"".join(packets), numpy.uint8), offsets, sizes)
    return batch


@pytest.mark.spec("ADM-6")
def test_a_model_keeps_its_document_text() -> None:
    again = pickle.loads(pickle.dumps(OWN))
    assert (again.text, again) == (OWN_TEXT, OWN)
    assert MessageModel.parse(OWN_TEXT + "# a remark\n") == OWN  # a changed description has no effect for programs
    assert MessageModel.parse(shipped("trade").text) == shipped("trade")


@pytest.mark.spec("ADM-6")
def test_all_models_are_sent_at_the_start_and_then_each_is_repeated_every_interval() -> None:
    cast = ModelsInBand(MODELS, INTERVAL_NS)
    assert cast.next_deadline_ns() is None
    assert [each.payload for each in cast.due(5)] == [text.encode() for text in TEXTS]
    sent = []
    for now_ns in range(5, 5 + 2 * INTERVAL_NS + 1, INTERVAL_NS // 10):
        sent += [(now_ns - 5, each.payload) for each in cast.due(now_ns)]
    half_ns = INTERVAL_NS // 2
    texts = [TEXTS[number % 2].encode() for number in range(4)]
    assert sent == [((number + 1) * half_ns, text) for number, text in enumerate(texts)]
    assert cast.next_deadline_ns() == 5 + 5 * half_ns
    assert len(cast.due(100 * INTERVAL_NS)) == 1  # late: missed repetitions are not all sent at once
    assert cast.due(100 * INTERVAL_NS) == ()


def test_without_models_there_is_no_deadline() -> None:
    cast = ModelsInBand()
    assert (cast.due(1), cast.next_deadline_ns(), cast.messages) == ((), None, ())
    assert outbound().next_deadline_ns() == outbound().publisher.next_deadline_ns()


def test_a_document_that_is_too_long_to_send_is_refused_at_the_start() -> None:
    long = MessageModel.parse(OWN_TEXT + "#" * MODEL_IN_BAND_SIZE_MAX)
    with pytest.raises(ConfigurationError, match="own_quote") as refused:
        ModelsInBand([long], INTERVAL_NS)
    assert "models_in_band" in str(refused.value)


@pytest.mark.parametrize("interval_s", [0, 0.05, 3_601, float("nan"), float("inf")])
def test_the_interval_has_limits(interval_s: float) -> None:
    with pytest.raises(ConfigurationError, match="models_interval_s"):
        PublishConfig(models_in_band=True, models_interval_s=interval_s)


@pytest.mark.spec("ADM-6", "SYNC-2")
def test_models_are_fragmented_and_do_not_use_the_numbers_of_the_data() -> None:
    """The publisher packs 1,472 bytes; a quote's model has 2,561."""
    out = outbound(*MODELS)
    out.tick(1)
    out.publish(Originated("md.x", [1, 2]), 2)
    out.tick(1 + INTERVAL_NS)
    out.publish(Originated("md.x", [3]), 3 + INTERVAL_NS)
    packets = packets_in(out.cursor.kept)
    assert any(decode(packet).is_fragmented for packet in packets)
    messages = received(packets)
    assert [message.topic for message in messages] == [MODEL_TOPIC, MODEL_TOPIC, "md.x", "md.x", MODEL_TOPIC, "md.x"]
    assert [bytes(each.payload).decode() for each in messages if each.topic == MODEL_TOPIC] == [*TEXTS, TEXTS[0]]
    assert not any(each.extensions for each in messages if each.topic == MODEL_TOPIC)
    data = [each for each in messages if each.topic == "md.x"]
    assert numbers_of(Merger().handle(deliver(A, data), 0)) == [1, 2, 3]


@pytest.mark.spec("ADM-6", "ADM-7")
def test_on_a_sealed_feed_models_wait_for_the_key_and_are_sealed() -> None:
    out = outbound(OWN, is_sealed=True)
    silence_ns = out.publisher.next_deadline_ns()
    out.tick(1)
    assert (len(out.cursor.kept), len(out.open_store)) == (0, 0)
    assert out.next_deadline_ns() == silence_ns  # the data thread does not spin in the meantime
    out.seal_with(Sealer(KEY, 7, 1))
    out.lease.renew(out.lease.now_ns(), 3_600.0)
    out.tick(2)
    (sealed,) = received(packets_in(out.cursor.kept))
    models = Models(nobody)
    gate = Gate([">"], None, models, Counters("client"))
    gate.allow(Entitlement([Grant(">", "receive")]), 0)
    gate.requires_seal = True
    gate.hold_keys([KEY])
    assert gate.passes(sealed)
    opened = gate.open(sealed)
    assert opened is not None
    assert not gate.meets(opened)
    assert models.get(900, 1) == OWN
    (kept,) = received(packets_in(out.open_store))  # for the journal and the stream service
    assert (kept.topic, bytes(kept.payload).decode()) == (MODEL_TOPIC, OWN_TEXT)


@pytest.mark.spec("ADM-6")
@pytest.mark.parametrize("packet_size_max", [1_000, 16_384])
def test_a_stream_over_tcp_begins_with_the_models_whatever_is_granted(packet_size_max: int) -> None:
    cast = ModelsInBand(MODELS, INTERVAL_NS).messages
    bench = ServiceBench(ServiceConfig(packet_size_max=packet_size_max), models=cast)
    bench.open(1, token(receive("md.us.eq.A.trade")), "md.us.eq.A.trade")
    bench.publish(PublishedStream().batch("md.us.eq.A.trade", "md.us.eq.B.trade"))
    packets = bench.packets(1)
    assert any(decode(packet).is_fragmented for packet in packets) == (packet_size_max < 2_000)
    assert [decode(packet).sequence for packet in packets] == list(range(1, len(packets) + 1))
    messages = received(packets)
    assert [message.topic for message in messages] == [MODEL_TOPIC, MODEL_TOPIC, "md.us.eq.A.trade"]
    assert [bytes(message.payload).decode() for message in messages[:2]] == TEXTS


def test_a_subscriber_without_topics_gets_no_models() -> None:
    bench = ServiceBench(models=ModelsInBand(MODELS, INTERVAL_NS).messages)
    bench.open(1, token(receive("md.>")))
    assert bench.packets(1) == []


@pytest.mark.parametrize("model", [shipped("quote"), SMALL])
@pytest.mark.parametrize("delay_s", [0, 60])
def test_the_stream_service_skips_the_models_that_were_published(model: MessageModel, delay_s: int) -> None:
    """Fragmented or not, live or from the journal, even for a subscriber with all rights."""
    out = outbound(model)
    out.tick(1)
    out.publish(Originated("md.x", [1]), 2)
    batch = published(out.open_store)
    bench = ServiceBench()
    bench.open(1, token(receive(">", delay_s)), ">", delay_s=delay_s)
    if delay_s:
        bench.handle(Recorded(1, batch))
    else:
        bench.publish(batch)
    assert bench.refusal(1) is None
    assert bench.topics(1) == ["md.x"]
    assert bench.numbers(1) == [1]


@pytest.mark.spec("SUB-3", "ADM-6")
def test_contributions_of_models_are_refused() -> None:
    bench = ServiceBench(contributions=("desk",))
    bench.open(1, token(Grant(">", "send")))
    bench.say(1, Contribute("desk", 1, [Contribution(MODEL_TOPIC, 0, 0, OWN_TEXT.encode())]))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert (refusal.code, "reserved for the plant" in refusal.reason) == ("contribution", True)


@pytest.mark.spec("ADM-6", "SYNC-7")
def test_models_in_a_merged_stream_do_not_cause_losses_for_the_application() -> None:
    merger = Merger()
    model = PacketMessage(MODEL_TOPIC, OWN_TEXT.encode())
    merger.handle(deliver(A, [model]), 0)
    give(merger, A, 1)
    give(merger, B, 1, 2, 3)
    assert lose(merger, A) == []  # B has a copy
    assert [bytes(each.payload) for each in messages_of(merger.handle(deliver(B, [model]), 0))] == [model.payload]
    assert numbers_of(give(merger, A, 3, 4)) == [4]
    merger.handle(deliver(A, [PacketMessage("free.text", b"")]), 0)
    assert len(lose(merger, A)) == 1  # of such messages no other publisher has a copy


def refusals(*contents: bytes, models: Models | None = None) -> tuple[Models, dict[str, int]]:
    models = models or Models(nobody)
    counters = Counters("client")
    gate = Gate([">"], None, models, counters)
    gate.allow(Entitlement([Grant(">", "receive")]), 0)
    for content in contents:
        assert not gate.passes(PacketMessage(MODEL_TOPIC, content))
    return models, counters.by_cause("messages_dropped")


OTHER = OWN_TEXT.replace('"bid_price"', '"bid_prize"')
NEWER = OWN_TEXT.replace("version = 1\n", "version = 2\n") + (
    '[[field]]\nname = "extra"\ntype = "i64"\npart = "ask"\nsince = 2\n'
)


@pytest.mark.spec("ADM-6")
@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"\xff\xfe", Cause.MESSAGE),
        (b"", Cause.MESSAGE),
        (b"id = ", Cause.MESSAGE),
        (b'id = 900\nname = "x"\nversion = 1\n', Cause.MESSAGE),
        (b"#" * (MODEL_IN_BAND_SIZE_MAX + 1), Cause.LENGTH),
        (b"[" * 5_000, Cause.MESSAGE),
        (OTHER.encode(), Cause.MODEL_CONFLICT),
        (TEXTS[0].replace('"bid_price"', '"bid_prize"').encode(), Cause.MODEL_CONFLICT),
    ],
)
def test_invalid_or_contradictory_models_are_counted_each_time_and_not_used(content: bytes, cause: Cause) -> None:
    models, dropped = refusals(OWN_TEXT.encode(), content, content)
    assert dropped == {cause: 2}
    assert models.get(900, 1) == OWN
    assert models.get(1, 1) == shipped("quote")


@pytest.mark.spec("ADM-6")
def test_a_newer_version_in_band_replaces_the_older_one_and_the_older_one_may_still_come() -> None:
    models, dropped = refusals(*(text.encode() for text in (OWN_TEXT, NEWER, OWN_TEXT, NEWER)))
    assert dropped == {}
    newest = models.get(900, 2)
    assert newest is not None
    assert (newest.version, "extra" in newest.fields_by_name) == (2, True)
    assert models.get(900, 1) is newest  # reads the older records, too


@pytest.mark.spec("ADM-6")
def test_a_model_of_the_server_takes_precedence_over_one_in_band() -> None:
    asked: list[int] = []

    def ask(model_id: int, version: int) -> MessageModel:
        asked.append(model_id)
        return OWN

    models = Models(ask)
    refusals(OTHER.encode(), models=models)
    assert models.get(900, 1) == MessageModel.parse(OTHER)
    assert asked == []  # a reader does not wait for the server when a model is known
    models.confirm(900, 1)
    assert models.get(900, 1) == OWN
    assert refusals(OTHER.encode(), models=models)[1] == {Cause.MODEL_CONFLICT: 1}
    assert models.get(900, 1) == OWN


def test_a_condition_uses_the_model_that_takes_precedence() -> None:
    models = Models(lambda model_id, version: OWN)
    gate = Gate([">"], "bid_price > 1", models, Counters("client"))
    gate.allow(Entitlement([Grant(">", "receive")]), 0)
    gate.passes(PacketMessage(MODEL_TOPIC, OTHER.encode()))
    quote = PacketMessage("md.x", bytes(OWN.new(bid_price=2)), 900, 1)
    assert not gate.passes(quote)  # nothing is called bid_price in that model
    models.confirm(900, 1)
    assert gate.passes(quote)


def test_a_model_that_claims_a_source_is_not_accepted() -> None:
    counters = Counters("client")
    models = Models(nobody)
    gate = Gate([">"], None, models, counters)
    gate.allow(Entitlement([Grant(">", "receive")]), 0)
    stream = PublishedStream()
    (message,) = received([stream.packet(MODEL_TOPIC, b'id = 902\nname = "z"\nversion = 1\n')])
    assert not gate.passes(message)
    assert counters.by_cause("messages_dropped") == {Cause.UNEXPECTED: 1}


def test_memory_of_documents_is_bounded() -> None:
    models = Models(nobody)
    for number in range(3_000):
        assert models.learn_in_band(b"garbage %d" % number) == Cause.MESSAGE
    assert len(models._judged) <= 1_024
