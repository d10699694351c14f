"""Calls from one thread that another thread executes."""

import threading
from concurrent.futures import Future

import pytest

from penstock.base.errors import LocalProtocolError
from penstock.net.live.mailbox import Mailbox

PATIENCE_SECONDS = 120


def test_calls_are_executed_in_order_in_the_owners_thread() -> None:
    woken = threading.Event()
    mailbox = Mailbox(woken.set, "the owner")
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            woken.wait(PATIENCE_SECONDS)
            woken.clear()
            mailbox.deliver()

    thread = threading.Thread(target=work)
    thread.start()
    made: list[int] = []
    for number in range(100):
        mailbox.post(lambda number=number: made.append(number))  # type: ignore[misc]
    assert mailbox.ask(threading.get_ident).result(PATIENCE_SECONDS) == thread.ident
    assert made == list(range(100))
    with pytest.raises(ZeroDivisionError):
        mailbox.ask(lambda: 1 // 0).result(PATIENCE_SECONDS)
    is_over.set()
    woken.set()
    thread.join()


def test_a_call_to_a_closed_mailbox_fails() -> None:
    mailbox = Mailbox(lambda: None, "the owner")
    early: Future[int] = mailbox.ask(lambda: 1)
    assert mailbox
    mailbox.close()
    late: Future[int] = mailbox.ask(lambda: 2)
    for answer in (early, late):
        with pytest.raises(LocalProtocolError, match="the owner has stopped"):
            answer.result(0)
    assert not mailbox


def test_a_cancelled_call_is_not_executed() -> None:
    mailbox = Mailbox(lambda: None, "the owner")
    made: list[int] = []
    answer = mailbox.ask(lambda: made.append(1))
    assert answer.cancel()
    mailbox.deliver()
    assert made == []
