"""Natural batching of messages that are published one by one.

A message that finds its stream idle is sent by the caller, at once. After JOINED_AFTER calls in a row, each of which
came at most BACK_TO_BACK_NS after the last one returned, the stream is in a burst: messages wait for further messages
and share packets. A waiting message is sent by a later call, or by the flusher: a thread that sleeps while there is no
burst and never holds the GIL. The first call that is not back to back sends its message at once, after those that wait.
"""

from libc.stdint cimport int64_t, uint32_t

import threading

from penstock.base.clock import NS_PER_US
from penstock.net._udp cimport udp_monotonic_ns

cdef extern from "penstock/net/burst.h" nogil:
    int turn_try(uint32_t *turn)
    void turn_wait(uint32_t *turn)
    void turn_give(uint32_t *turn)
    void bell_wait(uint32_t *bell)
    void bell_ring(uint32_t *bell)
    void bell_mute(uint32_t *bell)
    void sleep_precisely()
    void sleep_until_ns(int64_t at_ns)

BACK_TO_BACK_NS = 4 * NS_PER_US
"""Maximum time from the return of a call to the next call of a burst."""

JOINED_AFTER = 6
"""Calls back to back before the messages of further calls share packets."""

cdef int64_t back_to_back_ns = BACK_TO_BACK_NS
cdef int joined_after = JOINED_AFTER


cdef class Turn:
    """A lock that compiled code takes and gives without the GIL, and Python with `with`. Not reentrant."""

    def __enter__(self):
        self.take()

    def __exit__(self, *_):
        self.give()

    cdef void take(self) noexcept:
        if not turn_try(&self._state):
            with nogil:
                turn_wait(&self._state)

    cdef void take_nogil(self) noexcept nogil:
        if not turn_try(&self._state):
            turn_wait(&self._state)

    cdef void give(self) noexcept nogil:
        turn_give(&self._state)


cdef class Burst:
    """Decides which messages may wait; time is an argument. A message waits at most `linger_ns`; 0: none waits."""

    def __init__(self, int64_t linger_ns):
        self.linger_ns = linger_ns
        self._returned_ns = -NEVER_NS

    def takes(self, int64_t now_ns) -> bool:
        """joins() for Python."""
        return self.joins(now_ns)

    def returns(self, int64_t now_ns) -> None:
        """end_call() for Python."""
        self.end_call(now_ns)

    cdef bint joins(self, int64_t now_ns) noexcept nogil:
        if self.linger_ns == 0:
            return False
        if now_ns - self._returned_ns > back_to_back_ns:
            self._back_to_back = 0
            return False
        if self._back_to_back < joined_after:
            self._back_to_back += 1
            return False
        return True

    cdef void end_call(self, int64_t now_ns) noexcept nogil:
        self._returned_ns = now_ns

    cdef bint is_due(self, int64_t oldest_ns, int64_t now_ns) noexcept nogil:
        return now_ns - oldest_ns >= self.linger_ns // 2

    cdef int64_t look_ns(self, int64_t oldest_ns, int64_t now_ns) noexcept nogil:
        if oldest_ns < NEVER_NS:
            return oldest_ns + self.linger_ns
        if now_ns - self._returned_ns < self.linger_ns:  # the next message of the burst need not wake the flusher
            return self._returned_ns + self.linger_ns
        return NEVER_NS


cdef class Flushable:
    """The owner of messages that wait. Whoever uses its messages has the `turn`."""

    def __init__(self, Burst burst not None):
        self.turn = Turn()
        self.burst = burst

    cdef int64_t flush_due(self, int64_t now_ns) noexcept nogil:
        return NEVER_NS


cdef class Flusher:
    """A thread that sends the messages of one owner that wait, from the first wake() until stop()."""

    def __init__(self, Flushable target not None, str name not None):
        self._target = target
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def run(self) -> None:
        """The thread."""
        with nogil:
            sleep_precisely()
            while not self._is_stopped:
                bell_wait(&self._bell)
                self.follow_burst()

    def stop(self) -> None:
        """End the thread; messages that wait stay. Without the turn."""
        self._is_stopped = True
        bell_ring(&self._bell)
        if self._thread.ident is not None:
            self._thread.join()

    cdef int wake(self) except -1:
        if self._is_awake:
            return 0
        if self._thread.ident is None:
            self._thread.start()
        self._is_awake = True
        bell_ring(&self._bell)
        return 0

    cdef void follow_burst(self) noexcept nogil:
        cdef int64_t look_ns
        while not self._is_stopped:
            self._target.turn.take_nogil()
            look_ns = self._target.flush_due(udp_monotonic_ns())
            if look_ns == NEVER_NS:
                self._is_awake = False
                bell_mute(&self._bell)
            self._target.turn.give()
            if look_ns == NEVER_NS:
                return
            sleep_until_ns(look_ns)
