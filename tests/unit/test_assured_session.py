"""A client's session with message routers: reconnects, resends, epochs, requests, transactions (REPL-7, REPL-10)."""

from typing import Any, TypeVar

import pytest

from penstock.assured.core.session.events import (
    Answered,
    Ask,
    BeginTransaction,
    Changed,
    ClosePart,
    DataReceived,
    End,
    EndTransaction,
    Flush,
    Opened,
    OpenPart,
    PartFailed,
    Renew,
)
from penstock.assured.core.session.parts import FlowPart, PublisherPart
from penstock.assured.core.session.places import SessionConfig
from penstock.assured.core.session.session import AssuredSession
from penstock.assured.wire._layout import LIMIT_MESSAGES, OUTCOME_STORED, OUTCOME_TRANSACTION
from penstock.assured.wire.control import (
    NAMED_MAX,
    CloseFlow,
    Commit,
    Done,
    EmptyEndpoint,
    Ended,
    EndpointNamed,
    FlowEnded,
    FlowOpened,
    Login,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
    Refused,
    RenewToken,
    SteppedDown,
    Welcome,
    tell_last,
)
from penstock.assured.wire.control import Begin as BeginSaid
from penstock.assured.wire.control import Commit as CommitSaid
from penstock.assured.wire.frames import (
    Delivered,
    Publish,
    decode_frames,
    encode_acknowledge,
    encode_deliver,
    encode_settle,
)
from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, NotEntitledError, RemoteProtocolError, TokenError
from penstock.net.core.client_session import (
    Begin,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    LinkClosed,
    Over,
    Received,
    Say,
    SendData,
)
from penstock.net.core.control import Ping

A, B = "127.0.0.1:7460", "127.0.0.1:7461"
T = TypeVar("T")


class NoChance:
    def below(self, limit: int) -> int:
        return 0

    def bits(self, count: int) -> int:
        return 0


class Stage:
    """A session, and its instructions."""

    def __init__(self, **options: Any) -> None:
        self.session = AssuredSession(
            SessionConfig(name="app", **{"routers": (A, B), **options}), NoChance(), Counters("test"), token="a token"
        )
        self.now_ns = 0
        self.link = 0
        self.out: list[Any] = []

    def tell(self, event: Any) -> list[Any]:
        self.out = self.session.handle(event, self.now_ns)
        return self.out

    def one(self, kind: type[T]) -> T:
        (found,) = [each for each in self.out if isinstance(each, kind)]
        return found

    def said(self, kind: type[T]) -> T:
        (found,) = [each.message for each in self.out if isinstance(each, Say) and isinstance(each.message, kind)]
        return found

    def connect(self, epoch: int = 1, role: Any = "active", places: tuple[str, ...] = ()) -> None:
        """The requested connection attempt succeeds."""
        attempt = self.one(Connect).attempt
        self.link += 1
        self.tell(Connected(attempt, self.link))
        self.tell(Received(self.link, Welcome("r", role, epoch, places)))

    @property
    def is_welcome(self) -> bool:
        return self.session.welcome is not None

    def publisher(self, **options: Any) -> PublisherPart:
        part = PublisherPart(77, window=options.pop("window", 16), bytes_max=1 << 20)
        self.tell(OpenPart(part))
        self.tell(Received(self.link, PublisherOpened(self.said(OpenPublisher).number, 5, 0, **options)))
        assert self.one(Opened).part is part
        return part

    def published(self) -> list[int]:
        frames = decode_frames(b"".join(each.data for each in self.out if isinstance(each, SendData)))
        return [
            number
            for frame in frames
            if isinstance(frame, Publish)
            for number in range(frame.first_number, frame.first_number + len(frame.messages))
        ]


def begun(**options: Any) -> Stage:
    stage = Stage(**options)
    stage.tell(Begin())
    assert stage.one(Connect).place == A
    stage.connect()
    return stage


def put(part: PublisherPart, transaction: int = 0) -> int:
    return part.window.put("orders.new", b"x", 4, 0, 0, 0, 0, transaction)


def test_a_session_needs_at_least_one_router_address() -> None:
    with pytest.raises(ConfigurationError):
        SessionConfig(name="app", routers=())
    with pytest.raises(ConfigurationError):
        SessionConfig(name="app", routers=("nowhere",))


def test_the_session_logs_in_with_its_token() -> None:
    stage = Stage()
    stage.tell(Begin())
    stage.tell(Connected(stage.one(Connect).attempt, 1))
    assert stage.said(Login) == Login("app", "client", "a token", 0)


def test_a_session_reports_at_once_that_no_configured_router_can_be_reached() -> None:
    stage = Stage()
    stage.tell(Begin())
    stage.tell(ConnectFailed(stage.one(Connect).attempt, "no such host", is_hopeless=True))
    assert not stage.session.places.is_hopeless, "another router is configured"
    stage.tell(ConnectFailed(stage.one(Connect).attempt, "no such host either", is_hopeless=True))
    assert stage.session.places.is_hopeless
    assert stage.session.places.why_not == "no such host either"
    deadline_ns = stage.session.next_deadline_ns()
    assert deadline_ns is not None
    stage.now_ns = deadline_ns
    stage.tell(Tick())
    stage.connect()
    assert not stage.session.places.is_hopeless, "the next router is tried"


def test_a_router_that_does_not_answer_is_skipped_and_rounds_are_separated_by_pauses() -> None:
    stage = Stage()
    stage.tell(Begin())
    places = []
    for _ in range(6):
        attempt = stage.one(Connect)
        places.append(attempt.place)
        stage.tell(ConnectFailed(attempt.attempt))
        if not stage.out:  # pause
            places.append("pause")
            deadline_ns = stage.session.next_deadline_ns()
            assert deadline_ns is not None
            assert deadline_ns > stage.now_ns
            stage.now_ns = deadline_ns
            stage.tell(Tick())
    assert places == [A, B, "pause", A, B, "pause", A, B, "pause"]


def test_a_standby_router_is_left() -> None:
    stage = Stage()
    stage.tell(Begin())
    stage.connect(role="standby")
    assert stage.one(Close).link == 1
    assert stage.one(Connect).place == B
    stage.connect()
    assert stage.is_welcome


def test_repl_7_a_router_of_an_older_epoch_is_refused() -> None:
    stage = begun()
    stage.tell(Received(1, SteppedDown(7, B)))
    assert stage.one(Connect).place == B
    stage.connect(epoch=6)
    assert stage.one(Close).link == 2
    assert not stage.is_welcome
    assert stage.one(Connect).place == A
    stage.connect(epoch=7)
    assert stage.is_welcome
    assert stage.session.epoch == 7


def test_repl_7_routers_that_refer_to_each_other_are_tried_with_pauses() -> None:
    """During a switch neither router is active; a client does not run back and forth between them."""
    stage = begun()
    stage.tell(Received(1, SteppedDown(2, B)))
    attempts = 0
    for number in range(2, 20):
        if not [each for each in stage.out if isinstance(each, Connect)]:
            break
        attempts += 1
        other = {A: B, B: A}[stage.one(Connect).place]
        stage.tell(Connected(stage.one(Connect).attempt, number))
        stage.tell(Received(number, SteppedDown(2, other)))
    assert attempts == 4, "two redirections, then a round over both"
    assert (stage.session.next_deadline_ns() or 0) > stage.now_ns


def test_an_operator_of_two_routers_gets_the_active_one() -> None:
    stage = Stage(role="operator")
    stage.tell(Ask(7, EmptyEndpoint(0, "q")))
    stage.tell(Begin())
    stage.connect(role="standby")
    assert stage.one(Connect).place == B
    stage.connect()
    assert stage.said(EmptyEndpoint).name == "q"


def test_an_operator_of_one_router_gets_that_one() -> None:
    stage = Stage(role="operator", routers=(A,))
    stage.tell(Ask(7, EmptyEndpoint(0, "q")))
    stage.tell(Begin())
    stage.connect(role="standby")
    assert stage.said(EmptyEndpoint).name == "q"


def test_an_operator_is_not_redirected() -> None:
    stage = Stage(role="operator")
    stage.tell(Begin())
    stage.connect(places=("127.0.0.1:9999",))
    stage.tell(Received(1, SteppedDown(2, "127.0.0.1:9998")))
    assert stage.one(Connect).place == B
    stage.tell(ConnectFailed(stage.one(Connect).attempt))
    assert stage.one(Connect).place == A


def test_a_router_names_the_addresses_of_its_pair() -> None:
    stage = begun()
    stage.tell(LinkClosed(1))
    stage.connect(places=("127.0.0.1:9999",))
    stage.tell(LinkClosed(2))
    places = []
    for _ in range(3):
        places.append(stage.one(Connect).place)
        stage.tell(ConnectFailed(stage.one(Connect).attempt))
    assert places == [A, "127.0.0.1:9999", B]


def test_repl_1_unacknowledged_messages_are_sent_again_to_the_next_router() -> None:
    stage = begun()
    part = stage.publisher()
    for _ in range(4):
        put(part)
    stage.tell(Flush())
    assert stage.published() == [1, 2, 3, 4]
    stage.tell(DataReceived(1, encode_acknowledge(5, [(1, 1, OUTCOME_STORED)])))
    assert stage.one(Changed).refused == ()
    stage.tell(LinkClosed(1))
    put(part)
    stage.connect()
    again = stage.said(OpenPublisher)
    assert again.publisher == 77
    stage.tell(Received(2, PublisherOpened(again.number, 8, 4)))
    assert stage.published() == [2, 3, 4, 5]
    stage.tell(DataReceived(2, encode_acknowledge(8, [(2, 5, OUTCOME_STORED)])))
    assert part.window.unresolved == 6


def test_refused_messages_are_reported() -> None:
    stage = begun()
    part = stage.publisher()
    put(part)
    stage.tell(Flush())
    stage.tell(DataReceived(1, encode_acknowledge(5, [(1, 1, 33)])))
    assert stage.one(Changed).refused == ((part, 1, 1, 33),)


def test_a_refusal_names_the_full_endpoint_also_when_the_link_is_lost() -> None:
    stage = begun()
    part = stage.publisher()
    put(part)
    stage.tell(Flush())
    orders = EndpointNamed(3, "orders", 1_000, 2**20)
    stage.tell(Received(1, orders))
    stage.tell(DataReceived(1, encode_acknowledge(5, [(1, 1, 33, LIMIT_MESSAGES, 3)])))
    stage.tell(LinkClosed(1))
    assert part.window.full_endpoint(1) == (orders, LIMIT_MESSAGES)
    assert part.window.full_endpoint(2) is None


def test_client_and_router_keep_the_same_bounded_table_of_endpoint_names() -> None:
    told: dict[int, int] = {}
    for number in range(NAMED_MAX):
        tell_last(told, number, number)
    tell_last(told, 0, 0)
    tell_last(told, NAMED_MAX, NAMED_MAX)
    assert len(told) == NAMED_MAX
    assert (1 in told, 0 in told) == (False, True)


def test_a_flow_is_reopened_after_a_reconnect_and_starts_again() -> None:
    stage = begun()
    flow = FlowPart("orders", prefetch=10)
    stage.tell(OpenPart(flow))
    request = stage.said(OpenFlow)
    assert (request.endpoint, request.credit) == ("orders", 10)
    stage.tell(Received(1, FlowOpened(request.number, 3, True)))
    stage.tell(DataReceived(1, encode_deliver(3, [Delivered(1, b"a", b"b")])))
    message = flow.inbox.next()
    assert message is not None
    stage.tell(LinkClosed(1))
    assert not flow.is_active
    stage.connect()
    stage.tell(Received(2, FlowOpened(stage.said(OpenFlow).number, 4, False)))
    assert not flow.settlements.add(message, 1, 0)
    stage.tell(DataReceived(2, encode_deliver(4, [Delivered(1, b"a", b"b", flags=1)])))
    again = flow.inbox.next()
    assert again is not None
    assert again.is_redelivered
    assert flow.settlements.add(again, 1, 0)
    stage.tell(Flush())
    assert stage.one(SendData).data == encode_settle(4, [(1, 1, 1)])


def test_a_flow_that_the_router_ends_or_refuses_fails() -> None:
    stage = begun()
    flow, other = FlowPart("orders", prefetch=1), FlowPart("others", prefetch=1)
    stage.tell(OpenPart(flow))
    stage.tell(Received(1, Refused("not_entitled", "no", stage.said(OpenFlow).number)))
    failed = stage.one(PartFailed)
    assert failed.part is flow
    assert isinstance(failed.error, NotEntitledError)
    stage.tell(OpenPart(other))
    stage.tell(Received(1, FlowOpened(stage.said(OpenFlow).number, 4, True)))
    stage.tell(Received(1, FlowEnded(4, "unknown_endpoint", "it was deleted")))
    assert stage.one(PartFailed).part is other
    stage.tell(LinkClosed(1))
    stage.connect()
    assert not [each for each in stage.out if isinstance(each, Say)], "neither flow is reopened"


def test_requests_are_repeated_after_a_reconnect() -> None:
    stage = begun()
    stage.tell(Ask(9, EmptyEndpoint(0, "orders")))
    first = stage.said(EmptyEndpoint)
    stage.tell(LinkClosed(1))
    stage.connect()
    second = stage.said(EmptyEndpoint)
    assert second.number != first.number
    stage.tell(Received(2, Done(second.number)))
    assert stage.one(Answered) == Answered(9, Done(second.number))


def test_a_silent_router_is_left() -> None:
    stage = begun(silence_ms=3_000)
    stage.now_ns = 1_000 * NS_PER_MS
    stage.tell(Tick())
    assert stage.said(Ping)
    stage.now_ns = 3_000 * NS_PER_MS
    stage.tell(Tick())
    assert stage.one(Close).link == 1
    assert stage.one(Connect).place == B, "the router may be stopped: the other one is tried first"


def test_a_router_that_was_silent_gets_a_shorter_timeout() -> None:
    """The other router may be active by then: it stands by until the lease has ended."""
    stage = begun(silence_ms=3_000, welcome_ms=3_200)
    stage.now_ns = 3_000 * NS_PER_MS
    stage.tell(Tick())
    waited: list[int] = []
    while len(waited) < 5:
        if stage.one(Connect).place == B:
            stage.connect(role="standby")
        else:
            began_ns, stage.now_ns = stage.now_ns, stage.session.next_deadline_ns() or 0
            waited.append((stage.now_ns - began_ns) // NS_PER_MS)
            stage.tell(Tick())
        while not any(isinstance(each, Connect) for each in stage.out):  # pause
            stage.now_ns = stage.session.next_deadline_ns() or 0
            stage.tell(Tick())
    assert waited == [400, 800, 1_600, 3_200, 3_200]
    stage.connect()
    assert stage.is_welcome


def test_a_router_that_accepts_and_closes_links_repeatedly_is_retried_with_pauses() -> None:
    stage = begun()
    for _ in range(2):
        stage.tell(LinkClosed(stage.link))
        stage.connect()
    stage.tell(LinkClosed(stage.link))
    stage.connect()
    pauses = 0
    for _ in range(4):
        stage.tell(LinkClosed(stage.link))
        if not [each for each in stage.out if isinstance(each, Connect)]:
            pauses += 1
            stage.now_ns = stage.session.next_deadline_ns() or 0
            stage.tell(Tick())
        stage.connect()
    assert pauses >= 1
    stage.now_ns += 10_000 * NS_PER_MS
    stage.tell(LinkClosed(stage.link))
    stage.connect()
    stage.tell(LinkClosed(stage.link))
    assert stage.one(Connect), "a link that lasted is retried at once"


def test_refusals_that_no_further_attempt_can_change_are_final() -> None:
    stage = Stage()
    stage.tell(Begin())
    stage.tell(Connected(stage.one(Connect).attempt, 1))
    stage.tell(Received(1, Refused("token", "whose is this?")))
    assert isinstance(stage.one(Over).error, TokenError)
    assert stage.session.next_deadline_ns() is None
    assert stage.tell(Begin()) == []


def test_a_newer_token_is_sent() -> None:
    stage = begun()
    stage.tell(Renew("newer"))
    assert stage.said(RenewToken) == RenewToken("newer")
    stage.tell(LinkClosed(1))
    stage.tell(Connected(stage.one(Connect).attempt, 2))
    assert stage.said(Login).token == "newer"


@pytest.mark.parametrize("junk", [b"\x10\x00\x00\x00\x01", b"\x08\x00\x00\x00\x01" + bytes(7)])
def test_impossible_messages_of_a_router_are_errors_of_the_router(junk: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        begun().tell(DataReceived(1, junk))


def test_closing_a_publisher_keeps_a_flow_with_the_same_handle() -> None:
    stage = begun()
    publisher, flow = stage.publisher(), FlowPart("orders", prefetch=10)
    stage.tell(OpenPart(flow))
    stage.tell(Received(1, FlowOpened(stage.said(OpenFlow).number, publisher.handle, is_active=True)))
    stage.tell(ClosePart(publisher))
    stage.tell(DataReceived(1, encode_deliver(flow.handle, [Delivered(7, b"orders.new", b"x")])))
    assert flow.inbox.waiting == 1


def with_two_messages() -> tuple[Stage, FlowPart]:
    stage = begun()
    flow = FlowPart("orders", prefetch=10)
    stage.tell(OpenPart(flow))
    stage.tell(Received(1, FlowOpened(stage.said(OpenFlow).number, 5, is_active=True)))
    stage.tell(DataReceived(1, encode_deliver(5, [Delivered(each, b"orders.new", b"x") for each in (7, 8)])))
    return stage, flow


def test_closing_a_flow_reports_the_messages_that_were_read() -> None:
    """REPL-12: unread messages do not count as delivered, and can no longer be read."""
    stage, flow = with_two_messages()
    assert flow.inbox.next() is not None
    stage.tell(ClosePart(flow))
    assert (stage.said(CloseFlow).handle, stage.said(CloseFlow).read) == (5, 1)
    assert flow.inbox.next() is None

    stage, flow = with_two_messages()
    flow.inbox.take(2)
    stage.tell(ClosePart(flow, is_unread=True))
    assert stage.said(CloseFlow).read == 0


def test_closing_a_session_closes_its_flows() -> None:
    stage, _ = with_two_messages()
    stage.tell(End())
    assert stage.said(CloseFlow).read == 0


def test_a_closed_part_is_not_reopened() -> None:
    stage = begun()
    part = stage.publisher()
    stage.tell(ClosePart(part))
    stage.tell(LinkClosed(1))
    stage.connect()
    assert not [each for each in stage.out if isinstance(each, Say)]


# Transactions


def in_transaction() -> tuple[Stage, PublisherPart]:
    stage = begun()
    part = stage.publisher()
    stage.tell(BeginTransaction(part))
    assert stage.said(BeginSaid).transaction == part.transaction == 1
    put(part, 1)
    stage.tell(EndTransaction(3, part, is_commit=True))
    assert [type(each) for each in stage.out] == [SendData, Say], (
        "its messages and settlements are sent before the commit"
    )
    return stage, part


def test_repl_10_a_transaction_is_committed() -> None:
    stage, part = in_transaction()
    stage.tell(Received(1, Ended(stage.link and 3, "committed", 3)))
    assert stage.one(Answered).answer == Ended(0, "committed", 3)
    assert (part.transaction, part.window.outcome_of(1)) == (0, 3)


@pytest.mark.parametrize(("committed", "outcome"), [(1, OUTCOME_STORED), (0, OUTCOME_TRANSACTION)])
def test_repl_10_an_unanswered_commit_is_known_after_the_reconnect(committed: int, outcome: int) -> None:
    stage, part = in_transaction()
    stage.tell(LinkClosed(1))
    stage.connect()
    stage.tell(Received(2, PublisherOpened(stage.said(OpenPublisher).number, 5, committed, committed)))
    if committed:  # the router has not confirmed the write of the record either
        again = stage.said(CommitSaid).number
        assert stage.published() == []
        assert not [each for each in stage.out if isinstance(each, Answered)]
        stage.tell(DataReceived(2, encode_acknowledge(5, [(1, 1, OUTCOME_STORED)])))
        stage.tell(Received(2, Ended(again, "committed", OUTCOME_STORED)))
    answer = stage.one(Answered).answer
    assert isinstance(answer, Ended)
    assert answer.outcome == ("committed" if committed else "rolled_back")
    assert part.window.outcome_of(1) == outcome
    assert stage.published() == [], "no message of the transaction is sent again"
    stage.tell(BeginTransaction(part))
    assert stage.said(BeginSaid).transaction == 2


def test_repl_10_a_commit_unknown_to_the_next_router_has_an_unknown_outcome() -> None:
    stage, part = in_transaction()
    stage.tell(LinkClosed(1))
    stage.connect(epoch=9)
    stage.tell(Received(2, PublisherOpened(stage.said(OpenPublisher).number, 5, 0, 0)))
    answer = stage.one(Answered).answer
    assert isinstance(answer, Refused)
    assert answer.code == "unknown"
    assert stage.published() == [], "no message of the transaction is sent again"
    stage.tell(BeginTransaction(part))
    assert stage.said(BeginSaid).transaction == 2


def test_repl_10_a_transaction_whose_link_is_lost_before_its_commit_is_rolled_back() -> None:
    stage = begun()
    part = stage.publisher()
    stage.tell(BeginTransaction(part))
    put(part, 1)
    stage.tell(Flush())
    stage.tell(LinkClosed(1))
    stage.connect()
    stage.tell(Received(2, PublisherOpened(stage.said(OpenPublisher).number, 5, 0)))
    assert stage.published() == []
    put(part, 1)  # the application does not know yet
    stage.tell(EndTransaction(3, part, is_commit=True))
    answer = stage.one(Answered).answer
    assert isinstance(answer, Ended)
    assert answer.outcome == "rolled_back"
    assert not [each for each in stage.out if isinstance(each, Say) and isinstance(each.message, Commit)]
    assert part.window.outcome_of(2) == OUTCOME_TRANSACTION
