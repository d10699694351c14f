"""The state kept for the standby; see _replication_state.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from penstock.assured.core.router._containers cimport (
    Waiting,
    bytes_reserve,
    queue_at,
    queue_forget_publisher,
    queue_push,
)


cdef class ReplicationState:
    def __cinit__(self):
        self.consumed = []
        self.undone = []

    def __dealloc__(self):
        free(self._stream.data)
        free(self._unreplicated.items)

    def pair_up(self):
        """Note that there is a standby that gets copies."""
        self.has_secondary = True

    # The stream

    cdef void push(self, uint64_t id, uint64_t number, uint32_t party, uint32_t what) noexcept:
        """Append an item. Never fails: a stream that cannot grow is broken, and its sender begins anew."""
        cdef uint64_t size = self._stream.size, capacity
        cdef void *larger
        if self.is_stream_broken:
            return
        if size + sizeof(Item) > self._stream.capacity:
            if self._stream_first > size // 2:  # the front part has been sent
                memmove(self._stream.data, self._stream.data + self._stream_first, size - self._stream_first)
                self._stream.size = size = size - self._stream_first
                self._stream_first = 0
            else:
                capacity = max(<uint64_t>(256 * sizeof(Item)), 2 * self._stream.capacity)
                larger = realloc(self._stream.data, capacity) if capacity <= ITEMS_MAX * sizeof(Item) else NULL
                if larger is NULL:
                    self.is_stream_broken = True
                    return
                self._stream.data = <unsigned char *>larger
                self._stream.capacity = capacity
        (<Item *>(self._stream.data + size))[0] = Item(id, number, party, what)
        self._stream.size = size + sizeof(Item)

    cdef int push_front(self, const uint64_t *ids, uint64_t count) except -1:
        """Insert these messages before everything that was not sent yet."""
        cdef uint64_t rest = self._stream.size - self._stream_first, size = count * sizeof(Item), index
        cdef Item *items
        bytes_reserve(&self._stream, size)
        memmove(self._stream.data + self._stream_first + size, self._stream.data + self._stream_first, rest)
        items = <Item *>(self._stream.data + self._stream_first)
        for index in range(count):
            items[index] = Item(ids[index], 0, 0, ITEM_MESSAGE)
        self._stream.size += size
        return 0

    cdef void undo_transaction(self) noexcept:
        """Undo the transaction that the newest items belong to."""
        if not self.is_streaming or self.is_stream_broken:
            return
        self._stream.size -= sizeof(Item)
        while self.item_at(self._stream.size).what != ITEM_BEGIN:
            self._stream.size -= sizeof(Item)

    cdef void note_awaited(self) noexcept:
        """A publisher waits for the copy of the newest item."""
        self.is_stream_awaited = True

    def clear_awaited(self):
        """Everything that a publisher waited for has been sent."""
        self.is_stream_awaited = False

    cdef void begin_stream(self) noexcept:
        self._stream.size = self._stream_first = 0
        self.is_stream_broken = False
        self.is_streaming = True

    def end_stream(self):
        self.is_streaming = False
        self._stream.size = self._stream_first = 0

    def break_stream(self):
        """The stream is incomplete: it must be begun anew."""
        self.is_stream_broken = True

    cdef uint64_t first(self) noexcept:
        """The position of the next item to be sent."""
        return self._stream_first

    cdef uint64_t end(self) noexcept:
        return self._stream.size

    cdef const Item *item_at(self, uint64_t position) noexcept:
        return <const Item *>(self._stream.data + position)

    cdef void advance(self, uint64_t position) noexcept:
        """Items before this position were sent."""
        self._stream_first = position
        if position == self._stream.size:
            self._stream.size = self._stream_first = 0

    @property
    def backlog(self):
        """Number of unsent items."""
        return (self._stream.size - self._stream_first) // sizeof(Item)

    def set_match_from(self, uint64_t id):
        """The other router matches messages from this id on; 0: none."""
        self.match_from = id

    # Acknowledgements that wait for the standby

    cdef int await_copy(self, const Waiting *waiting) except -1:
        return queue_push(&self._unreplicated, waiting)

    cdef uint64_t unreplicated_end(self) noexcept:
        """The end of the queue, for take_unreplicated()."""
        return self._unreplicated.end

    cdef bint take_unreplicated(self, uint64_t end, uint64_t through_id, Waiting *taken) noexcept:
        """Take the next message out of the queue, if its id is at most this one; at `end` there are no more."""
        if self._unreplicated.first >= end:
            return False
        taken[0] = queue_at(&self._unreplicated, self._unreplicated.first)[0]
        if taken.id > through_id:
            return False
        self._unreplicated.first += 1
        return True

    cdef void forget_publisher(self, uint32_t handle) noexcept:
        queue_forget_publisher(&self._unreplicated, handle)

    cdef void forget_unreplicated(self) noexcept:
        """Drop the waiting acknowledgements."""
        self._unreplicated.first = self._unreplicated.end

    @property
    def unreplicated_count(self):
        """Number of messages whose acknowledgement waits for the standby."""
        return self._unreplicated.end - self._unreplicated.first

    # Endpoints that the standby lacks

    cdef void set_absent_count(self, uint32_t count) noexcept:
        self.absent_count = count

    cpdef void note_absent_met(self) noexcept:
        """A message that should be synchronous is at this router only."""
        self.has_met_absent = True

    def take_absent_met(self):
        """True if that was noted since the last call."""
        met, self.has_met_absent = self.has_met_absent, False
        return met

    def await_absent(self, bint is_waiting):
        """Set whether such messages wait until the standby has their endpoints."""
        self.waits_for_absent = is_waiting

    # Transactions

    def add_consumed(self, uint64_t transaction_id, uint32_t endpoint, ids not None, whats not None, targets not None):
        """Add messages that a transaction has consumed from an endpoint; the standby may not have the transaction
        yet."""
        self.consumed.append((transaction_id, endpoint, ids, whats, targets))

    def take_consumed(self, uint64_t through_id):
        """Remove and return what transactions up to this id have consumed."""
        taken = [each for each in self.consumed if each[0] <= through_id]
        if taken:
            self.consumed = [each for each in self.consumed if each[0] > through_id]
        return taken

    cdef int forget_consumed(self, uint32_t endpoint, uint64_t id) except -1:
        """Forget a consumed message, because the transaction was undone; another one may consume it."""
        self.consumed = [
            (each[0], each[1], *(part[each[2] != id] for part in each[2:])) if each[1] == endpoint else each
            for each in self.consumed
        ]
        return 0

    def add_undone(self, uint64_t first_id, uint64_t last_id):
        """A successor of this router never had its synchronous messages in this range of ids."""
        self.undone.append((first_id, last_id))
