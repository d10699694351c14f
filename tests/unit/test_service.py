"""The stream service's core: streams of subscribers, and causes of refusals."""

import numpy
import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.core import Tick
from penstock.feed.config import ServiceConfig
from penstock.feed.core.service.events import (
    Close,
    ContributionTaken,
    Disconnected,
    EndStream,
    Image,
    ImageTaken,
    MessageSent,
    Overrun,
    Recorded,
    Revoke,
    SendMessage,
    StartHistory,
    TakeContribution,
    TakeImage,
)
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.unicast import (
    CloseStream,
    Contribute,
    Contributed,
    Contribution,
    ImageBegin,
    ImageEnd,
    ModifyStream,
    Packets,
    Position,
    RenewToken,
    StreamOpened,
)
from penstock.security import Grant
from penstock.wire import MESSAGE_DTYPE, Kind, decode
from unit.service_kit import PublishedStream, ServiceBench, receive, token, unpacked

QUOTES = "md.us.eq.*.quote"


def test_a_subscriber_gets_the_topics_that_it_requests_and_is_granted() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive("md.us.>"), receive("!md.us.eq.ZZ.>")), QUOTES, "md.uk.>")
    bench.publish(stream.batch("md.us.eq.A.quote", "md.us.eq.A.trade", "md.us.eq.ZZ.quote", "md.uk.eq.B.quote"))
    bench.publish(stream.batch("md.us.eq.C.quote"))
    opened = bench.said[1][0]
    assert isinstance(opened, SendMessage)
    assert opened.message == StreamOpened("a-1", 7, 0, [1])
    assert bench.topics(1) == ["md.us.eq.A.quote", "md.us.eq.C.quote"]
    assert bench.numbers(1) == [1, 5]  # the adapter's own numbers


@pytest.mark.spec("FEED-6")
def test_packets_are_numbered_per_connection_and_keep_their_origin() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive(">")), ">")
    for _ in range(3):
        bench.publish(stream.batch("a.b", "c.d"))
    packets = [decode(packet) for packet in bench.packets(1)]
    assert [packet.sequence for packet in packets] == [1, 2, 3]
    assert {(packet.kind, packet.group, packet.publisher_id) for packet in packets} == {(Kind.DATA, 0, 7)}
    assert bench.numbers(1) == [1, 2, 3, 4, 5, 6]


def test_discontinuities_go_to_all_subscribers() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive("md.>")), QUOTES)
    bench.publish(stream.batch(DISCONTINUITY_TOPIC, "md.x"))
    assert bench.topics(1) == [DISCONTINUITY_TOPIC]


@pytest.mark.spec("ADM-4")
def test_streams_start_stop_and_have_an_account_per_subscriber() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive(">")), "a.>")
    bench.open(2, token(receive(">"), client="bob", subscription="s-2"), "b.>")
    bench.publish(stream.batch("a.x", "a.y", "b.z"))
    accounts = {account.client: account for account in bench.service.accounts.open_streams()}
    assert (accounts["alice"].messages, accounts["bob"].messages) == (2, 1)
    assert accounts["alice"].bytes == sum(len(packet) for packet in bench.packets(1))
    bench.say(1, CloseStream())
    bench.publish(stream.batch("a.x"))
    assert bench.topics(1) == ["a.x", "a.y"]
    assert [account.client for account in bench.service.accounts.open_streams()] == ["bob"]
    counters = bench.service.accounts.of_client("alice")
    assert (counters["subscriptions_opened"], counters["messages_streamed"]) == (1, 2)


def test_topics_can_be_changed() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive(">")), "a.>")
    bench.publish(stream.batch("a.x", "b.x"))
    bench.say(1, ModifyStream(["b.>"]))
    bench.publish(stream.batch("a.x", "b.x"))
    assert bench.topics(1) == ["a.x", "b.x"]
    bench.say(1, ModifyStream(["b..c"]))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert refusal.code == "topics"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "token"),
        ("ps1.x.y.z", "token"),
        (token(receive(">"), seconds=0), "expired"),
        (token(Grant("a.>", "send")), "entitlement"),
        (token(), "entitlement"),
    ],
)
def test_a_subscriber_without_a_grant_is_refused_with_the_reason(text: str, code: str) -> None:
    bench = ServiceBench()
    bench.open(1, text, "a.>")
    refusal = bench.refusal(1)
    assert refusal is not None
    assert (refusal.code, bool(refusal.reason)) == (code, True)
    assert len(bench.service) == 0
    assert bench.service.counters["subscriptions_refused"] == 1


@pytest.mark.spec("ADM-5")
def test_a_revoked_subscriber_gets_the_reason_and_no_more_messages() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive(">")), ">")
    bench.open(2, token(receive(">"), client="bob", subscription="s-2"), ">")
    bench.handle(Revoke("left the firm", subscription_id="s-1"))
    bench.publish(stream.batch("a"))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert (refusal.code, refusal.reason) == ("revoked", "left the firm")
    assert (bench.topics(1), bench.topics(2)) == ([], ["a"])
    bench.verifier.revoke("s-1", "left the firm", 2**62)
    bench.open(3, token(receive(">")), ">")
    refusal = bench.refusal(3)
    assert refusal is not None
    assert refusal.code == "revoked"


def test_a_token_expires_unless_it_is_renewed() -> None:
    bench = ServiceBench()
    bench.open(1, token(receive(">"), seconds=10), ">")
    bench.open(2, token(receive(">"), client="bob", seconds=20), ">")
    bench.now_ns = deadline_ns = bench.service.next_deadline_ns() or 0
    bench.say(1, RenewToken(token(receive(">"), now_ns=bench.now_ns - NS_PER_SECOND, seconds=100)))
    bench.handle(Tick())
    assert bench.refusal(1) is None
    bench.now_ns = bench.service.next_deadline_ns() or 0
    assert bench.now_ns == deadline_ns + 10 * NS_PER_SECOND
    bench.handle(Tick())
    refusal = bench.refusal(2)
    assert refusal is not None
    assert refusal.code == "expired"
    assert len(bench.service) == 1


def test_the_token_of_another_client_renews_nothing() -> None:
    bench = ServiceBench()
    bench.open(1, token(receive(">")), ">")
    bench.say(1, RenewToken(token(receive(">"), client="mallory")))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert refusal.code == "token"


def test_a_slow_subscriber_is_disconnected_and_others_are_not() -> None:
    bench, stream = ServiceBench(ServiceConfig(queue_bytes_max=1_000)), PublishedStream()
    bench.open(1, token(receive(">")), ">")
    bench.open(2, token(receive(">"), client="bob"), ">")
    for _ in range(20):
        bench.publish(stream.batch("a.b"))
        last = bench.said[2][-1]
        assert isinstance(last, SendMessage)
        bench.handle(MessageSent(2, last.size))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert refusal.code == "slow"
    assert isinstance(bench.said[1][-1], EndStream)
    assert len(bench.packets(1)) < 20
    assert (bench.refusal(2), len(bench.packets(2))) == (None, 20)
    assert bench.service.counters.by_cause("subscriptions_ended") == {"slow": 1}


@pytest.mark.spec("SUB-5")
def test_messages_published_during_the_image_follow_it_without_gap_or_repetition() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    wishes = bench.open(1, token(receive(">")), "a.>", image=True)
    assert TakeImage(1) in wishes
    bench.publish(stream.batch("a.1", "a.2"))
    picture = unpacked([stream.packet(topic) for topic in ("b.image", "a.image", "b.other")])  # all there is
    stream.next_number -= 3
    image = Image(picture.data, picture.data, picture.rows, [Position(1, 256, 2)], next_packet=4)
    bench.publish(stream.batch("a.3", "b.4"))
    assert bench.packets(1) == []
    bench.handle(ImageTaken(1, image))
    bench.publish(stream.batch("a.5"))
    kinds = [type(each.message) for each in bench.said[1] if isinstance(each, SendMessage)]
    assert kinds == [StreamOpened, ImageBegin, Packets, ImageEnd, Packets, Packets]
    assert bench.topics(1) == ["a.image", "a.3", "a.5"]


def empty_image(included: int) -> Image:
    """The image of a PublishedStream after this many packets, without instruments."""
    nothing = numpy.empty(0, numpy.uint8)
    return Image(nothing, nothing, numpy.empty(0, MESSAGE_DTYPE), [Position(1, 256, included)], included + 1)


@pytest.mark.spec("SUB-5")
@pytest.mark.parametrize("carried", range(5))
@pytest.mark.parametrize("included", range(5))
def test_exactly_the_messages_beyond_the_image_follow_it(included: int, carried: int) -> None:
    """For any position of the service when the image arrives: behind, equal, or ahead."""
    bench, stream = ServiceBench(), PublishedStream()
    batches = [stream.batch(f"a.{number}") for number in range(1, 5)]
    bench.open(1, token(receive(">")), "a.>", image=True)
    for batch in batches[:carried]:
        bench.publish(batch)
    bench.handle(ImageTaken(1, empty_image(included)))
    for batch in batches[carried:]:
        bench.publish(batch)
    bench.publish(stream.batch("a.5", "a.6"))
    assert bench.numbers(1) == list(range(included + 1, 7))


@pytest.mark.spec("SUB-5")
def test_an_image_that_is_ahead_divides_a_batch_between_two_packets() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive(">")), "a.>", image=True)
    bench.open(2, token(receive(">"), client="bob"), "a.>")
    bench.handle(ImageTaken(1, empty_image(3)))
    bench.publish(stream.batch("a.1", "b.2", "a.3", "a.4", "b.5", "a.6"))
    assert (bench.numbers(1), bench.numbers(2)) == ([4, 6], [1, 3, 4, 6])


def test_an_image_without_a_stream_ends_the_stream() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    bench.open(1, token(receive(">")), "a.>", image=True, live=False)
    picture = stream.batch("a.image")
    bench.handle(ImageTaken(1, Image(picture.data, picture.data, picture.rows, [], next_packet=2)))
    assert bench.said[1][-1] == EndStream(1)
    assert bench.topics(1) == ["a.image"]
    assert len(bench.service) == 0


@pytest.mark.spec("ADM-2")
def test_a_delayed_grant_is_served_from_the_journal_only() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    text = token(receive("a.>", 900), receive("b.>", 60), receive("!a.secret"))
    wishes = bench.open(1, text, ">", delay_s=900)
    assert StartHistory(1, 900, 0) in wishes
    bench.open(2, text, ">")  # the smallest delay there is
    assert bench.topics(1) == []
    batch = stream.batch("a.x", "a.secret", "b.x", "c.x")
    bench.publish(batch)
    assert (bench.topics(1), bench.topics(2)) == ([], [])
    bench.handle(Recorded(1, batch))
    bench.handle(Recorded(2, batch))
    assert (bench.topics(1), bench.topics(2)) == (["a.x"], ["b.x"])
    bench.open(3, text, ">", delay_s=0)
    refusal = bench.refusal(3)
    assert refusal is not None
    assert (refusal.code, "60 s" in refusal.reason) == ("entitlement", True)
    bench.open(4, text, ">", image=True)
    refusal = bench.refusal(4)
    assert refusal is not None
    assert refusal.code == "entitlement"


@pytest.mark.spec("ADM-2")
def test_messages_delivered_live_are_not_repeated_with_the_delay() -> None:
    bench, stream = ServiceBench(), PublishedStream()
    text = token(receive("md.>", 900), receive("md.us.>"), receive("!md.us.secret"))
    bench.open(1, text, ">", delay_s=0)
    bench.open(2, text, ">", delay_s=900)
    bench.open(3, text, ">", delay_s=1_000)
    batch = stream.batch("md.us.x", "md.uk.x", "md.us.secret")
    bench.publish(batch)
    for number in (2, 3):
        bench.handle(Recorded(number, batch))
    assert (bench.topics(1), bench.topics(2), bench.topics(3)) == (["md.us.x"], ["md.uk.x"], ["md.uk.x"])
    bench.say(2, RenewToken(token(receive("md.us.>"))))  # the delayed grant is gone
    bench.handle(Recorded(2, batch))
    assert bench.topics(2) == ["md.uk.x"]


@pytest.mark.spec("SUB-3")
def test_contributions_need_a_grant_for_each_topic() -> None:
    bench = ServiceBench(contributions=("derived",))
    bench.open(1, token(receive(">"), Grant("alpha.alice.>", "send")), ">")
    good = Contribution("alpha.alice.x", 1, 1, b"payload")
    asked = bench.say(1, Contribute("derived", 1, [good]))
    assert asked == [TakeContribution(1, "derived", 1, [good])]
    answered = bench.handle(ContributionTaken(1, "derived", 2, 1))
    assert answered == [SendMessage(1, Contributed("derived", 2))]
    assert bench.service.accounts.open_streams()[0].contributed == 1
    bench.say(1, Contribute("derived", 2, [good, Contribution("alpha.bob.x", 1, 1, b"")]))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert refusal.code == "entitlement"


def test_a_stream_has_one_contributor_until_that_one_leaves() -> None:
    bench = ServiceBench(contributions=("derived", "other"))
    one = [Contribution("a", 1, 1, b"")]
    for number, client in enumerate(["alice", "bob", "carol", "alice"], 1):
        bench.open(number, token(Grant(">", "send"), client=client))
    bench.say(2, Contribute("derived", 1, []))  # a request is not a contribution
    assert bench.say(1, Contribute("derived", 1, one)) == [TakeContribution(1, "derived", 1, one)]
    assert bench.say(4, Contribute("derived", 2, one)) == [TakeContribution(4, "derived", 2, one)], "alice, again"
    assert bench.say(3, Contribute("other", 1, one)) == [TakeContribution(3, "other", 1, one)]
    bench.say(2, Contribute("derived", 1, one))
    bench.say(3, Contribute("derived", 1, []))
    for number in (2, 3):
        refusal = bench.refusal(number)
        assert refusal is not None
        assert refusal.code == "contribution"
        assert "another client contributes to derived" in refusal.reason
    bench.open(5, token(Grant(">", "send"), client="bob", seconds=7_200))
    bench.handle(Disconnected(1))
    bench.now_ns += 3_600 * NS_PER_SECOND
    bench.handle(Tick())  # the other token of alice expires
    assert bench.say(5, Contribute("derived", 3, one)) == [TakeContribution(5, "derived", 3, one)]


@pytest.mark.parametrize("stream", ["derived", "unknown"])
def test_contributions_are_bounded_and_go_only_to_streams_that_accept_them(stream: str) -> None:
    bench = ServiceBench(ServiceConfig(contribution_size_max=100), contributions=("derived",))
    bench.open(1, token(Grant(">", "send")))
    bench.say(1, Contribute(stream, 1, [Contribution("a", 1, 1, bytes(100 if stream == "derived" else 1))]))
    refusal = bench.refusal(1)
    assert refusal is not None
    assert refusal.code == "contribution"


def test_only_an_open_is_accepted_first_and_only_once() -> None:
    bench = ServiceBench()
    bench.say(1, ModifyStream(["a"]))
    bench.open(2, token(receive(">")), ">")
    bench.open(2, token(receive(">")), ">")
    for subscriber in (1, 2):
        refusal = bench.refusal(subscriber)
        assert refusal is not None
        assert refusal.code == "protocol"


def test_bounds_overruns_and_the_end() -> None:
    bench = ServiceBench(ServiceConfig(subscribers_max=2))
    bench.open(1, token(receive(">")), ">")
    bench.open(2, token(receive(">", 60)), ">")
    bench.open(3, token(receive(">")), ">")
    bench.handle(Overrun())
    bench.handle(Disconnected(1))
    bench.handle(Close())
    bench.open(4, token(receive(">")), ">")
    codes = {number: refusal.code for number in (1, 2, 3, 4) if (refusal := bench.refusal(number))}
    assert codes == {1: "unavailable", 2: "stopping", 3: "limit", 4: "stopping"}
