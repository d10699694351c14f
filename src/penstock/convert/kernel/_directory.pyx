"""Symbols and topics of the instruments that a converter knows: made once for each, then only looked up."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

import numpy

from penstock.convert.kernel._frame cimport Frame, TopicPlace
from penstock.convert.books._units cimport LIMIT_INSTRUMENTS, SYMBOL_SIZE


cdef class Directory:
    """Owned by one converter; the kernels call describe() and learn() when an instrument is new."""

    def __cinit__(self, plan):
        self._plan = plan
        self.use_memory(numpy.empty(4096, numpy.uint8))

    def __dealloc__(self):
        free(self._places)

    @property
    def data(self):
        """All topics, one after another."""
        return self._data

    def describe(self, bytes venue_symbol not None) -> tuple:
        """(symbol in 16 bytes, venue in 4, round lot or 0, decimals of prices and of quantities or None) of a venue's
        symbol; ValueError if it is none."""
        symbol, reference = self._plan.symbology.describe(venue_symbol)
        venue = self._plan.venue.encode().ljust(4, b"\0")
        return symbol, venue, reference.round_lot, reference.price_decimals, reference.quantity_decimals

    def learn(self) -> None:
        """Make topics for the instruments that have none yet."""
        cdef uint64_t known = self._frame.instruments_known
        cdef uint64_t count = self._frame.state.counts[LIMIT_INSTRUMENTS]
        while known < count:
            symbol = self._frame.state.instruments[known].reference.symbol[:SYMBOL_SIZE]
            self.put_topics(known + 1, self._plan.topics_of(symbol))
            known += 1
            self._frame.instruments_known = <uint32_t>known

    cdef int attach(self, Frame *frame) except -1:
        self._frame = frame
        frame.topic_kinds = <uint32_t>len(self._plan.topics)
        self.used = 0
        self._installs = frame.state.installs
        frame.instruments_known = 0
        self.put_topics(0, self._plan.topics_of(b""))
        return 0

    cdef int refresh(self) except -1:
        """Begin anew if the state has become another one."""
        if self._installs != self._frame.state.installs:
            self.attach(self._frame)
        return 0

    cdef int begin_forwarding(self, uint64_t size) except -1:
        """Room for topics that messages bring themselves, after those of the instruments."""
        self.make_room(size)
        cdef uint8_t[::1] view = self._data
        self._frame.forwarded_at = self.used
        self._frame.forwarded_topics.at = &view[0] + self.used
        self._frame.forwarded_topics.size = size
        return 0

    cdef int put_topics(self, uint64_t first, list topics) except -1:
        cdef uint64_t needed = (first + 1) * self._frame.topic_kinds
        cdef uint64_t room = max(needed, 2 * self._places_room)
        cdef TopicPlace *grown
        cdef TopicPlace *place
        cdef bytes topic
        if needed > self._places_room:
            grown = <TopicPlace *>realloc(self._places, room * sizeof(TopicPlace))
            if grown is NULL:
                raise MemoryError
            self._places = grown
            self._places_room = room
            self._frame.topics = grown
        for index, topic in enumerate(topics):
            self.make_room(len(topic))
            self._data[self.used : self.used + len(topic)] = numpy.frombuffer(topic, numpy.uint8)
            place = &self._places[first * self._frame.topic_kinds + <uint64_t>index]
            place.offset = <uint32_t>self.used
            place.size = <uint32_t>len(topic)
            self.used += len(topic)
        return 0

    def make_room(self, uint64_t size) -> None:
        """Others may still read the memory that there was: it is left to them."""
        if self.used + size > <uint64_t>len(self._data):
            grown = numpy.empty(max(self.used + size, 2 * <uint64_t>len(self._data)), numpy.uint8)
            grown[: self.used] = self._data[: self.used]
            self.use_memory(grown)

    cdef int use_memory(self, data) except -1:
        cdef const uint8_t[::1] view = data
        self._data = data
        self.data_at = &view[0]
        return 0
