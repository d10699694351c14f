"""The future of one published message.

An asyncio.Future with a result needs two more turns of the loop's callback queue, which cost more than the message.
This future resumes its task in the callback that received the acknowledgement.
"""

from libc.stdint cimport uint64_t

import asyncio

cdef extern from "Python.h":
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1


cdef class Acknowledgement:
    """Awaited once, by a task of this loop. All methods are called in the loop's thread. The result is (number,
    outcome)."""

    # True tells asyncio that the task waits: the protocol of asyncio's futures
    cdef public bint _asyncio_future_blocking
    cdef readonly uint64_t number
    cdef bint is_done
    cdef int outcome
    cdef object loop, callback, context, error

    def __cinit__(self, object loop) -> None:
        self.loop = loop

    # For the publisher

    def answer(self, uint64_t number, int outcome) -> None:
        """Resume the task, unless it was cancelled. In a callback of the loop, not in a task."""
        if not self.is_done:
            self.number, self.outcome = number, outcome
            self._resume()

    def fail(self, object error not None) -> None:
        """Resume the task with an exception, unless it was cancelled. In a callback of the loop, not in a task."""
        if not self.is_done:
            self.error = error
            self._resume()

    cdef int _resume(self) except -1:
        cdef object callback = self.callback, context = self.context
        self.is_done = True
        self.callback = self.context = None
        if callback is not None:
            PyContext_Enter(context)
            try:
                callback(self)
            finally:
                PyContext_Exit(context)
        return 0

    # For asyncio's tasks

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if not self.is_done:
            self._asyncio_future_blocking = True
            return self
        raise StopIteration(self.result())

    def get_loop(self) -> object:
        return self.loop

    def add_done_callback(self, object callback, *, object context) -> None:
        self.callback, self.context = callback, context

    def cancel(self, object msg=None) -> bool:
        if self.is_done:
            return False
        self.is_done = True
        self.error = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        if self.callback is not None:
            self.loop.call_soon(self.callback, self, context=self.context)
            self.callback = self.context = None
        return True

    def done(self) -> bool:
        return self.is_done

    def result(self) -> tuple:
        if self.error is not None:
            raise self.error
        return self.number, self.outcome
