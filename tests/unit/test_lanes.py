"""The direct paths between the middleware's cores and their transports."""

import os
import threading

from penstock.net._burst import Turn

THREADS, ROUNDS = 6, 500


def test_one_thread_at_a_time_has_a_turn() -> None:
    turn, inside, most, count = Turn(), 0, 0, 0

    def work() -> None:
        nonlocal inside, most, count
        for _ in range(ROUNDS):
            with turn:
                inside += 1
                most = max(most, inside)
                before = count
                os.sched_yield()  # other threads compete for the turn
                count = before + 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count) == (1, THREADS * ROUNDS)


def test_a_turn_is_released_after_an_error() -> None:
    turn = Turn()
    try:
        with turn:
            raise KeyError("inside")
    except KeyError:
        pass
    had = threading.Event()

    def work() -> None:
        with turn:
            had.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert had.is_set()
