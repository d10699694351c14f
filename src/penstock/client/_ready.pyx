"""Decoded messages that wait for the application, and the events between them."""

from libc.stdint cimport int64_t, uint64_t

from penstock.shm._memory cimport wall_ns

from collections import deque


cdef class ReadyMessages:
    """An iterator over the messages of a subscription; one thread reads.

    `fill` adds further messages, waiting a moment for them; `check` raises if the subscription has ended; `tell` gets
    the events. No message is returned without a call of `check` after `is_failed` is set or the wall clock has reached
    `expires_ns`.
    """

    cdef object _fill
    cdef object _check
    cdef object _tell
    cdef list _messages     # the current ones
    cdef Py_ssize_t _next   # the next one of them
    cdef object _later      # lists of messages and events after them
    cdef readonly uint64_t given
    """Number of messages returned."""
    cdef public bint is_closed
    cdef public bint is_failed
    cdef public int64_t expires_ns

    def __cinit__(self, fill not None, check not None, tell not None):
        self._fill = fill
        self._check = check
        self._tell = tell
        self._messages = []
        self._later = deque()

    cpdef void add(self, list messages):
        if self._next == len(self._messages) and not self._later:
            self._messages = messages
            self._next = 0
        else:
            self._later.append(messages)

    cpdef void add_event(self, event):
        self._later.append(event)

    cpdef void clear(self):
        """Drop everything. May be called in any thread."""
        self._messages = []
        self._next = 0
        self._later.clear()

    cpdef object pop(self):
        """Return the next message; None if there is none. Passes earlier events to `tell`."""
        while True:
            if self._next < len(self._messages):
                if not self.is_failed and wall_ns() < self.expires_ns:
                    self._next += 1
                    self.given += 1
                    return self._messages[self._next - 1]
                self._check()
                if self.is_failed or wall_ns() >= self.expires_ns:
                    return None
            elif self._later:
                later = self._later.popleft()
                if type(later) is list:
                    self._messages = <list>later
                    self._next = 0
                else:
                    self._tell(later)
            else:
                return None

    def __bool__(self) -> bool:
        """True if there is a message or an event."""
        return self._next < len(self._messages) or bool(self._later)

    def __iter__(self):
        return self

    def __next__(self):
        while not self.is_closed:
            message = self.pop()
            if message is not None:
                return message
            self._check()
            if not self.is_closed:
                self._fill()
        raise StopIteration
