"""A publisher that waits for each message uses the session's link itself: requests of other threads in the meantime,
and failures."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from integration.assured_kit import RouterProcess, client_of, router_config, router_process
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import Assured, AssuredPublisher, inline_commit
from penstock.base.errors import LocalProtocolError, RefusedError, UnreachableError
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture(autouse=True)
def on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests do not depend on the definition of a fast publisher, or on the time for which a link stays handed
    over."""
    monkeypatch.setattr(inline_commit, "STREAK_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(inline_commit, "IDLE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with router_process(router_config(tmp_path / "state"), tmp_path) as router:
        yield router


def inline_commit_of(client: Assured) -> inline_commit.ClientInlineCommit:
    return client._running.inline_commit


class Numbers:
    """Publishes consecutive numbers, and records which of them were acknowledged."""

    def __init__(self, client: Assured, publisher: AssuredPublisher) -> None:
        self.client = client
        self.publisher = publisher
        self.count = 0
        while not inline_commit_of(client).is_handed_over:
            self.publish()
            assert self.count < 1_000, "the link is not handed over"

    def publish(self, timeout: float | None = PATIENCE_SECONDS) -> None:
        self.count += 1
        outcome = self.publisher.publish("orders.new", b"%d" % (self.count - 1), timeout=timeout)
        assert outcome in ("stored", "known"), "known: the message was sent again on another link"

    def check(self) -> None:
        """Check that all numbers are in the queue, once and in order."""
        with self.client.endpoint("orders", prefetch=self.count) as queue:
            found: list[int] = []
            while len(found) < self.count and (more := queue.take(self.count - len(found), PATIENCE_SECONDS)):
                found += [int(each.payload) for each in more]
        assert found == list(range(self.count))
        assert self.client.endpoints("orders")[0].messages == self.count


def in_thread(call: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


@pytest.mark.spec("REPL-1")
def test_messages_published_one_by_one_are_stored_once_and_in_order(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        for _ in range(200):
            numbers.publish()
            assert inline_commit_of(client).is_handed_over
        numbers.check()
        assert not inline_commit_of(client).is_handed_over, "a consumer needs the loop"


def test_a_link_that_nobody_uses_goes_home(router: RouterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_commit, "IDLE_SECONDS", 0.05)
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        wait_until(lambda: not inline_commit_of(client).is_handed_over, "the link to return to the loop")
        numbers.publish()
        numbers.check()


def test_a_refusal_is_told_to_the_one_that_published(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        client.create_endpoint(EndpointConfig(name="few", wants=(Want(topics=("few",)),), messages_max=1))
        numbers = Numbers(client, publisher)
        publisher.publish("few", b"")
        with pytest.raises(RefusedError, match="'few' is full"):
            publisher.publish("few", b"", timeout=PATIENCE_SECONDS)
        numbers.publish()
        assert publisher.flush(PATIENCE_SECONDS)


def test_what_is_sent_and_then_published_keeps_its_order(router: RouterProcess) -> None:
    """Repeatedly: the loop's thread is notified of sent messages while the other thread publishes."""
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        for _ in range(600):
            inline_commit_of(client)._streak = inline_commit.STREAK
            numbers.publish()
            publisher.send("orders.new", b"%d" % numbers.count)
            numbers.count += 1
            while publisher.part.window.is_unsent and inline_commit_of(client).is_handed_over:
                pass  # the loop's thread was not notified
            numbers.publish()
        numbers.check()


def test_others_get_what_they_want_at_once(router: RouterProcess) -> None:
    """Threads that publish, send and make requests on one session, all at the same time."""
    with client_of(router.place) as client, client.publisher() as publisher, client.publisher() as other:
        numbers = Numbers(client, publisher)

        def send() -> None:
            for _ in range(100):
                other.send("orders.other", b"sent")
                other.publish("orders.other", b"published", timeout=PATIENCE_SECONDS)

        threads = [in_thread(send), in_thread(lambda: [client.endpoints() for _ in range(50)] and None)]
        for _ in range(600):
            numbers.publish()
        for thread, raised in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            assert not raised
        assert other.flush(PATIENCE_SECONDS)
        assert client.endpoints("orders")[0].messages == numbers.count + 200


@pytest.mark.spec("REPL-1")
def test_a_router_that_is_killed_while_the_link_is_lent(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        for _ in range(2):
            numbers = Numbers(client, publisher)
            router.pause()
            thread, raised = in_thread(numbers.publish)
            wait_until(lambda: inline_commit_of(client).is_busy, "the thread to wait")
            router.kill()
            router.start()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
            assert not raised
            numbers.check()
            client.empty_endpoint("orders")


def test_a_router_that_stands_still_is_left(router: RouterProcess) -> None:
    with client_of(router.place, silence_ms=300) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        router.pause()
        thread, raised = in_thread(numbers.publish)
        wait_until(lambda: not client.router, "the session to give up the link")
        router.resume()
        thread.join(PATIENCE_SECONDS)
        assert not raised
        numbers.check()


def test_a_timeout_leaves_the_message_to_the_loop(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        router.pause()
        with pytest.raises(UnreachableError, match="in time"):
            numbers.publish(timeout=0.1)
        router.resume()
        assert publisher.flush(PATIENCE_SECONDS)
        numbers.publish()
        numbers.check()


@contextlib.contextmanager
def alarms(handler: Callable[[], None], seconds: float, interval: float = 0.0) -> Iterator[None]:
    """While the first thread waits, it is interrupted, as by Ctrl-C."""

    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_ends_the_call_and_nothing_else(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        router.pause()
        with alarms(interrupt, 0.1), pytest.raises(KeyboardInterrupt):
            numbers.publish()
        router.resume()
        assert publisher.flush(PATIENCE_SECONDS)
        numbers.publish()
        numbers.check()


def test_interrupts_at_any_moment_leave_the_session_as_it_was(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(client, publisher)
        for _ in range(200):
            with contextlib.suppress(KeyboardInterrupt), alarms(interrupt, 0.0003, 0.0007):
                while True:
                    publisher.publish("orders.interrupted", b"", timeout=PATIENCE_SECONDS)
            numbers.publish()
            inline_commit_of(client)._streak = inline_commit.STREAK
        assert publisher.flush(PATIENCE_SECONDS)


def test_a_signals_handler_may_publish_and_close(router: RouterProcess) -> None:
    """Runs in the thread that has the link."""
    with client_of(router.place) as client:
        publisher = client.publisher()
        numbers = Numbers(client, publisher)
        router.pause()
        with alarms(lambda: publisher.send("orders.alarm", b"") and None, 0.05, 0.05), pytest.raises(UnreachableError):
            numbers.publish(timeout=0.3)
        router.resume()
        assert publisher.flush(PATIENCE_SECONDS)
        while not inline_commit_of(client).is_handed_over:
            numbers.publish()
        router.pause()
        with alarms(client.close, 0.1), pytest.raises(LocalProtocolError, match="closed"):
            numbers.publish()
        router.resume()


def test_a_session_that_is_closed_lets_go_of_the_thread(router: RouterProcess) -> None:
    with client_of(router.place) as client:
        numbers = Numbers(client, client.publisher())
        router.pause()
        thread, raised = in_thread(numbers.publish)
        wait_until(lambda: inline_commit_of(client).is_busy, "the thread to wait")
        client.close()
        thread.join(PATIENCE_SECONDS)
        assert isinstance(raised[0], LocalProtocolError)
        router.resume()
