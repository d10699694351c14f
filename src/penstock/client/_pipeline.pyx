"""The ordinary path of messages from a source to the application: receive, order, merge, check and decode, without
Python in between."""

import time

from penstock.capture.live._reading cimport BatchReader
from penstock.client._topic_gate cimport TopicGate
from penstock.wire._messages cimport MessageBatch

from penstock.middleware.core.events import DeliverBatch, MergedBatch


cdef class Pipeline:
    """Works on the state of the merger and the gate, which take over where a message is unusual."""

    cdef object _merger
    cdef object _table
    cdef TopicGate _gate
    cdef BatchReader _reader
    cdef readonly list left
    """The merger's instructions that are left to the caller."""

    def __cinit__(self, merger not None, TopicGate gate not None, BatchReader reader not None):
        self._merger = merger
        self._table = merger.table
        self._gate = gate
        self._reader = reader
        self.left = []

    cpdef list receive(self, source, timeout):
        """Return the decoded messages that arrive within `timeout` seconds, possibly none. None if something unusual
        arrived; then `left` has everything.
        """
        cdef list received = source.receive(timeout)
        cdef MessageBatch batch, chosen
        cdef Py_ssize_t end
        self.left = []
        if len(received) == 1 and type(received[0]) is DeliverBatch:
            batch = received[0].messages
            merged, end = self._table.take(batch, 0)
            chosen = merged
            if end == batch.message_count_:
                if chosen is None:
                    return []
                wanted = self._gate.choose(chosen)
                if wanted is not None:
                    return self._reader.read(wanted)
            if chosen is not None:
                self.left.append(MergedBatch(chosen))
            if end < batch.message_count_:
                self.left += self._merger.take_rest(batch, end, time.monotonic_ns())
            return None
        if not received:
            return received
        for each in received:
            self.left += self._merger.handle(each, time.monotonic_ns())
        return None
