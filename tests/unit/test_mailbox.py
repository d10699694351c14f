"""Calls that one thread makes for others."""

import threading
from concurrent.futures import Future

import pytest

from penstock.base.errors import LocalProtocolError
from penstock.net.live.mailbox import Mailbox

PATIENCE_SECONDS = 120


def test_what_is_asked_is_answered_in_the_owners_thread_in_order() -> None:
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


def test_who_asks_in_vain_is_told() -> None:
    mailbox = Mailbox(lambda: None, "the owner")
    early: Future[int] = mailbox.ask(lambda: 1)
    assert mailbox
    mailbox.close()
    late: Future[int] = mailbox.ask(lambda: 2)
    for answer in (early, late):
        with pytest.raises(LocalProtocolError, match="the owner has stopped"):
            answer.result(0)
    assert not mailbox


def test_a_question_taken_back_is_not_asked() -> None:
    mailbox = Mailbox(lambda: None, "the owner")
    made: list[int] = []
    answer = mailbox.ask(lambda: made.append(1))
    assert answer.cancel()
    mailbox.deliver()
    assert made == []
