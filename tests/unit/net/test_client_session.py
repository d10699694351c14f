"""A client's link: states, timeouts, back-off, final refusals, and requests that are repeated on the next link."""

import random
from typing import Any

import pytest

from penstock.base.core import Tick
from penstock.base.errors import NotEntitledError, PenstockError, RefusedError, TokenError
from penstock.net.core.client_session import (
    U32_MAX,
    Begin,
    ClientSession,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    LinkClosed,
    LinkLeft,
    LogIn,
    Over,
    Requests,
    Say,
)
from penstock.net.core.control import Ping, Pong
from penstock.net.core.refusal_errors import RefusalErrors, by_code

SILENCE_NS = 900
PING_NS = SILENCE_NS // 3
ANSWER_NS = 500
PAUSE_NS = 70

BUSY = RefusedError("the server is busy", peer_code="busy")
REFUSALS = RefusalErrors("server", by_code(NotEntitledError, TokenError), final={"not-entitled"})


class Rounds:
    """Addresses a and b in turn, with a pause before each further round."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[str] = []

    def first(self) -> tuple[str, int]:
        return "a", 0

    def next(self, lost: str, hint: str) -> tuple[str, int]:
        if hint:
            return hint, 0
        self.count += 1
        return ("b", 0) if self.count % 2 else ("a", PAUSE_NS)

    @property
    def answer_ns(self) -> int:
        return ANSWER_NS

    def pass_over(self) -> None:
        self.told.append("silent")

    def succeed(self, now_ns: int) -> None:
        self.told.append("in use")

    def lose(self, now_ns: int) -> None:
        self.told.append("lost")


class Stage:
    def __init__(self) -> None:
        self.addresses = Rounds()
        self.session: ClientSession[str] = ClientSession(self.addresses, REFUSALS, silence_ns=SILENCE_NS)

    def tell(self, event: Any, now_ns: int = 0) -> list[Any]:
        return self.session.handle(event, now_ns)

    def tick(self, now_ns: int) -> list[Any]:
        """Tick at the deadline, and not before it."""
        assert self.session.next_deadline_ns() == now_ns
        assert self.tell(Tick(), now_ns - 1) == []
        return self.tell(Tick(), now_ns)

    def connect(self, attempt: int, link: int, now_ns: int = 0) -> None:
        assert self.tell(Connected(attempt, link), now_ns) == [LogIn(link)]

    def use(self, attempt: int, link: int, now_ns: int = 0) -> list[Any]:
        self.connect(attempt, link, now_ns)
        assert self.session.expects_welcome(link)
        return self.session.accept(f"welcome on {link}", now_ns)


def begun() -> Stage:
    stage = Stage()
    assert stage.session.next_deadline_ns() is None
    assert stage.tell(Begin()) == [Connect(1, "a")]
    return stage


def in_use() -> Stage:
    stage = begun()
    assert stage.use(1, 11) == []
    assert (stage.session.link, stage.session.place, stage.session.welcome) == (11, "a", "welcome on 11")
    return stage


# Attempts


def test_a_failed_attempt_is_followed_by_the_next_address_and_then_by_a_pause() -> None:
    stage = begun()
    assert stage.tell(ConnectFailed(1, "refused")) == [Connect(2, "b")]
    assert stage.tell(ConnectFailed(2, "refused"), 5) == []
    assert stage.tick(5 + PAUSE_NS) == [Connect(3, "a")]


def test_a_connect_timeout_ends_the_attempt() -> None:
    stage = begun()
    assert stage.tick(ANSWER_NS) == [Connect(2, "b")]
    assert stage.addresses.told == ["silent"]


def test_a_login_timeout_ends_the_attempt() -> None:
    stage = begun()
    stage.connect(1, 11, 100)
    assert stage.tick(ANSWER_NS) == [Close(11), LinkLeft(11, was_lost=False), Connect(2, "b")]
    assert stage.addresses.told == ["silent"]


def test_a_link_of_an_abandoned_attempt_is_closed() -> None:
    """Also during the pause that follows, because the link's address is no longer the current one."""
    stage = begun()
    stage.tick(ANSWER_NS)
    assert stage.tell(Connected(1, 11), ANSWER_NS) == [Close(11)]
    stage.tick(2 * ANSWER_NS)
    assert stage.session.next_deadline_ns() == 2 * ANSWER_NS + PAUSE_NS
    assert stage.tell(Connected(2, 12), 2 * ANSWER_NS) == [Close(12)]
    assert stage.tell(ConnectFailed(2), 2 * ANSWER_NS) == []
    assert stage.tick(2 * ANSWER_NS + PAUSE_NS) == [Connect(3, "a")]


def test_a_second_link_of_an_attempt_is_closed() -> None:
    stage = begun()
    stage.connect(1, 11)
    assert stage.tell(Connected(1, 12)) == [Close(12)]
    assert stage.session.next_link == 11


# The link in use


def test_a_quiet_link_is_closed_after_three_pings_without_an_answer() -> None:
    stage = in_use()
    assert stage.tick(PING_NS) == [Say(11, Ping(PING_NS))]
    assert stage.tick(2 * PING_NS) == [Say(11, Ping(2 * PING_NS))]
    assert stage.tick(SILENCE_NS) == [Close(11), LinkLeft(11, was_lost=True), Connect(2, "b")]
    assert stage.addresses.told == ["in use", "silent", "lost"]
    assert (stage.session.link, stage.session.welcome) == (0, None)


def test_any_message_shows_that_the_server_is_alive() -> None:
    stage = in_use()
    stage.tick(PING_NS)
    assert stage.session.hear(11, 400)
    assert stage.session.next_deadline_ns() == 2 * PING_NS
    stage.tick(2 * PING_NS)
    stage.tick(3 * PING_NS)
    assert stage.session.next_deadline_ns() == 4 * PING_NS
    stage.tick(4 * PING_NS)
    assert stage.tick(400 + SILENCE_NS)[0] == Close(11)


def test_an_answer_replaces_a_ping() -> None:
    stage = in_use()
    stage.session.hear_answer(200)
    assert stage.tick(200 + PING_NS) == [Say(11, Ping(200 + PING_NS))]


def test_pings_are_answered_and_pongs_are_not() -> None:
    stage = in_use()
    assert stage.session.answer(11, Ping(3), 9) == [Say(11, Pong(3, 9, 9))]
    assert stage.session.answer(11, Pong(3, 4, 5), 9) == []


def test_events_of_another_link_are_ignored() -> None:
    stage = begun()
    assert not stage.session.hear(0, 0)
    stage.connect(1, 11)
    assert stage.session.hear(11, 0)
    assert not stage.session.hear(12, 0)
    assert stage.tell(LinkClosed(12)) == []
    assert stage.tell(LinkClosed(0)) == []


def test_a_closed_link_is_replaced() -> None:
    stage = in_use()
    assert stage.tell(LinkClosed(11), 20) == [LinkLeft(11, was_lost=True), Connect(2, "b")]
    assert stage.use(2, 12, 30) == []
    assert stage.session.place == "b"
    assert stage.session.was_welcome


def test_silence_does_not_count_while_reading_is_paused() -> None:
    stage = in_use()
    stage.session.pause()
    assert stage.session.hear(11, 10)  # a message that was under way
    late_ns = 100 * SILENCE_NS
    assert stage.tell(Tick(), late_ns) == [Say(11, Ping(late_ns))]
    stage.session.resume(late_ns)
    stage.tick(late_ns + PING_NS)
    stage.tick(late_ns + 2 * PING_NS)
    assert stage.tick(late_ns + SILENCE_NS)[0] == Close(11)


# A second link while one is in use


def test_a_move_switches_links_when_the_next_link_is_ready() -> None:
    stage = in_use()
    assert stage.session.move("c", 10) == [Connect(2, "c")]
    assert stage.session.move("d", 10) == [], "only one move at a time"
    assert stage.use(2, 12, 20) == []
    assert (stage.session.link, stage.session.next_link) == (11, 12)
    assert not stage.session.expects_welcome(12), "the move is complete"
    assert stage.session.use_next(30) == [LinkLeft(11, was_lost=False), Close(11)]
    assert (stage.session.link, stage.session.place, stage.session.welcome) == (12, "c", "welcome on 12")


@pytest.mark.parametrize("place", ["", "a"])
def test_a_move_to_the_current_address_is_ignored(place: str) -> None:
    assert in_use().session.move(place, 10) == []


def test_a_failed_move_leaves_the_link_in_use() -> None:
    stage = in_use()
    stage.session.move("c", 10)
    assert stage.tell(ConnectFailed(2), 20) == []
    assert stage.session.link == 11
    stage.session.move("c", 30)
    stage.connect(3, 13, 30)
    assert stage.tell(LinkClosed(13), 40) == [LinkLeft(13, was_lost=False)]
    assert (stage.session.link, stage.session.candidate) == (11, "")


def test_the_next_link_takes_over_when_the_current_link_is_lost() -> None:
    stage = in_use()
    stage.session.move("c", 10)
    stage.use(2, 12, 20)
    assert stage.tell(LinkClosed(11), 25) == [LinkLeft(11, was_lost=True)]
    assert stage.session.link == 12


def test_a_move_continues_when_the_link_in_use_is_lost() -> None:
    stage = in_use()
    stage.session.move("c", 10)
    assert stage.tell(LinkClosed(11), 15) == [LinkLeft(11, was_lost=True)]
    assert stage.use(2, 12, 20) == []
    assert stage.session.link == 12


def test_a_next_link_after_its_welcome_does_not_time_out_while_reading_is_paused() -> None:
    stage = in_use()
    stage.session.move("c", 0)
    stage.use(2, 12)
    stage.session.pause()
    assert stage.tell(Tick(), 100 * ANSWER_NS) == [Say(11, Ping(100 * ANSWER_NS))]
    stage.session.resume(100 * ANSWER_NS)
    assert Close(12) in stage.tell(Tick(), 101 * ANSWER_NS)


# Refusals


@pytest.mark.parametrize(
    ("code", "was_welcome", "kind"),
    [
        ("not-entitled", False, NotEntitledError),
        ("not-entitled", True, NotEntitledError),
        ("token", False, TokenError),
        ("token", True, None),
        ("busy", False, None),
        ("busy", True, None),
    ],
)
def test_refusals_that_no_further_attempt_can_change_are_final(
    code: str, was_welcome: bool, kind: type[PenstockError] | None
) -> None:
    stage = in_use() if was_welcome else begun()
    if not was_welcome:
        stage.connect(1, 11)
    out = stage.session.refuse(11, code, REFUSALS.error_of(code, "no"), 0)
    if kind is None:
        assert out == [Close(11), LinkLeft(11, was_lost=was_welcome), Connect(2, "b")]
    else:
        closed, over = out
        assert closed == Close(11)
        assert isinstance(over, Over)
        assert isinstance(over.error, kind)
        assert stage.session.is_over
        assert stage.session.next_deadline_ns() is None
        assert stage.tell(Begin()) == []
        assert not stage.session.hear(11, 0)


def test_a_final_refusal_ends_both_links() -> None:
    stage = in_use()
    stage.session.move("c", 0)
    stage.connect(2, 12)
    out = stage.session.refuse(12, "not-entitled", REFUSALS.error_of("not-entitled", "no"), 0)
    assert out[:2] == [Close(11), Close(12)]


def test_a_refusal_that_names_a_server_redirects_the_client() -> None:
    stage = begun()
    stage.connect(1, 11)
    out = stage.session.refuse(11, "busy", BUSY, 0, hint="c")
    assert out == [Close(11), LinkLeft(11, was_lost=False), Connect(2, "c")]


def test_an_unsuitable_server_is_left() -> None:
    stage = begun()
    stage.connect(1, 11)
    assert stage.session.leave(11, 0) == [Close(11), LinkLeft(11, was_lost=False), Connect(2, "b")]
    assert not stage.session.was_welcome


def test_a_refusal_without_a_matching_error_class_keeps_its_code() -> None:
    error = REFUSALS.error_of("busy", "too many", hint="later")
    assert isinstance(error, RefusedError)
    assert error.peer_code == "busy"
    assert "the server refuses: too many" in str(error)


# Requests


def test_a_request_is_answered_once() -> None:
    requests: Requests[str] = Requests()
    first, second = requests.add("first"), requests.add("second")
    assert (first, second, len(requests)) == (1, 2, 2)
    assert requests.take(second) == "second"
    assert requests.take(second) is None
    assert requests.take(99) is None


def test_unanswered_requests_are_repeated_in_order_with_new_numbers() -> None:
    requests: Requests[str] = Requests()
    for each in "abc":
        requests.add(each)
    requests.take(2)
    assert requests.lose() == ["a", "c"]
    assert not requests
    assert requests.add("a") == 4, "a late answer to the first link is ignored"


def test_request_numbers_in_use_are_skipped_after_the_wrap() -> None:
    requests: Requests[str] = Requests(lambda number: number == 2)
    requests.add("kept")
    requests._numbers._last = U32_MAX - 1
    assert requests.add("last") == U32_MAX
    assert requests.next_number() == 3, "1 waits, 2 is in use for another request"


# Any order of events


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events_leaves_a_link_or_a_deadline(seed: int) -> None:
    """At most one link in use and one next link; every other link is closed; without a link there is always a deadline
    for the next attempt."""
    draw = random.Random(seed)
    stage = Stage()
    session = stage.session
    open_links: set[int] = set()
    attempts: set[int] = set()
    now_ns = link = 0

    def carry_out(instructions: list[Any]) -> None:
        for each in instructions:
            match each:
                case Connect(attempt):
                    attempts.add(attempt)
                case Close(closed):
                    open_links.discard(closed)

    carry_out(stage.tell(Begin()))
    for _ in range(400):
        now_ns += draw.randrange(100)
        match draw.randrange(9):
            case 0 | 1 if attempts:
                attempt = draw.choice(sorted(attempts))
                attempts.discard(attempt)
                if draw.random() < 0.7:
                    link += 1
                    open_links.add(link)
                    carry_out(stage.tell(Connected(attempt, link), now_ns))
                else:
                    carry_out(stage.tell(ConnectFailed(attempt), now_ns))
            case 2 | 3 if session.expects_welcome(session.next_link):
                carry_out(session.accept("welcome", now_ns))
            case 4 if open_links:
                lost = draw.choice(sorted(open_links))
                open_links.discard(lost)
                carry_out(stage.tell(LinkClosed(lost), now_ns))
            case 5 if session.link:
                carry_out(session.move(draw.choice("abc"), now_ns))
            case 6 if session.link and session.next_welcome:
                carry_out(session.use_next(now_ns))
            case 7 if (present := session.next_link or session.link) and draw.random() < 0.3:
                carry_out(session.refuse(present, "busy", BUSY, now_ns, hint=draw.choice(["", "c"])))
            case _:
                now_ns = max(now_ns, session.next_deadline_ns() or 0)
                carry_out(stage.tell(Tick(), now_ns))
        assert open_links == {each for each in (session.link, session.next_link) if each}
        assert session.link or session.candidate
        assert session.next_deadline_ns() is not None
        assert bool(session.welcome) == bool(session.link)
