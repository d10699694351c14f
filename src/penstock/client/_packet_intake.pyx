"""Packets of adapters' stream services on their way from the loop's thread to the application's thread.

A PacketCutter for each connection splits the received bytes into frames. It puts frames with packets into the
PacketIntake, as they are, and returns all others, which the connection's session handles. The application's thread
copies the packets from there into a batch. Both threads hold the GIL while they use the intake, and neither waits.

A frame with packets is {"type": "packets", "packets": [<packet>, …]} in msgpack, as adapters encode it. After a frame in
any other encoding everything goes to the session, which keeps the order and decodes all encodings.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from posix.unistd cimport close, read, write

from penstock.net._udp cimport udp_monotonic_ns
from penstock.wire._datagrams cimport DatagramBatch

from collections import deque

from penstock.base.errors import LocalProtocolError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.middleware.unicast import PACKETS_MAX

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int count, int flags)
    int EFD_CLOEXEC, EFD_NONBLOCK

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    short POLLIN

cdef enum:
    LENGTH_SIZE = 4
    HEAD_SIZE = 22
    TYPE_AT = 6  # in the head
    TYPE_SIZE = 7
    NS_PER_MS = 1_000_000
    POLL_MS_MAX = 1_000

cdef const char *HEAD = b"\x82\xa4type\xa7packets\xa7packets"
cdef uint32_t packet_size_max = PACKET_SIZE_MAX
cdef uint32_t packets_max = PACKETS_MAX


cdef class PacketIntake:
    """Frames and other content of all connections, in order of arrival. fileno() is readable while something waits."""

    cdef object _waiting        # (source, data, begin, end) of whole frames, and (content, None, 0, 0)
    cdef int _fd
    cdef tuple _entry           # the one that is being read
    cdef bytes _data
    cdef Py_ssize_t _at         # the next packet in `_data`, or the next frame if `_left` is 0
    cdef Py_ssize_t _end
    cdef uint32_t _left         # packets left in the current frame

    def __cinit__(self):
        self._waiting = deque()
        self._fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self._fd < 0:
            raise OSError("cannot create a descriptor")

    def __dealloc__(self):
        self.close()

    cpdef void close(self):
        if self._fd >= 0:
            close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        return self._fd

    cpdef int put(self, content) except -1:
        """Add something else than frames; take() returns it."""
        return self.add((content, None, 0, 0))

    cdef int add(self, tuple entry) except -1:
        cdef uint64_t one = 1
        cdef bint was_empty = not self._waiting and self._entry is None
        self._waiting.append(entry)
        if was_empty and write(self._fd, &one, sizeof(one)) < 0:
            pass  # readable already
        return 0

    def take(self, DatagramBatch batch not None, int64_t timeout_ns) -> object:
        """Fill the batch with packets of one connection and return its cutter, or return other content; None if nothing
        arrives in time."""
        cdef tuple entry
        batch.clear()
        if self._entry is None and not self._waiting:
            if timeout_ns <= 0:
                return None
            self.wait(timeout_ns)
            if not self._waiting:
                return None
        if self._entry is None and (<tuple>self._waiting[0])[1] is None:
            entry = self._waiting.popleft()
            self.quieten()
            return entry[0]
        source = (self._entry or self._waiting[0])[0]
        self.fill(batch, source)
        self.quieten()
        return source

    cdef int fill(self, DatagramBatch batch, PacketCutter source) except -1:
        """Move packets of this source, in order, as far as there is room."""
        cdef const uint8_t *data
        cdef uint32_t size
        while batch.count < batch.capacity:
            if self._entry is None:
                if not self._waiting or (<tuple>self._waiting[0])[0] is not source:
                    return 0
                self._entry = self._waiting.popleft()
                self._data, self._at, self._end = self._entry[1], self._entry[2], self._entry[3]
            data = <const uint8_t *><const char *>self._data
            if self._left == 0:
                self._at += LENGTH_SIZE + HEAD_SIZE
                self._at += read_array(data + self._at, self._end - self._at, &self._left)
                source.take_frame()
            if self._left:
                self._at += read_binary(data + self._at, self._end - self._at, &size)
                batch.put(data + self._at, size, source.key(batch))
                self._at += size
                self._left -= 1
            if self._left == 0 and self._at == self._end:
                self._entry = self._data = None
        return 0

    cdef void quieten(self):
        """Make the descriptor unreadable if nothing waits."""
        cdef uint64_t count
        if self._entry is None and not self._waiting and read(self._fd, &count, sizeof(count)) < 0:
            pass  # unreadable already

    cdef void wait(self, int64_t timeout_ns):
        cdef pollfd waited
        cdef int64_t deadline_ns = udp_monotonic_ns()
        deadline_ns = INT64_MAX if timeout_ns > INT64_MAX - deadline_ns else deadline_ns + timeout_ns
        cdef int64_t left_ns = timeout_ns
        waited.fd, waited.events, waited.revents = self._fd, POLLIN, 0
        with nogil:
            while left_ns > 0 and poll(&waited, 1, <int>min(left_ns // NS_PER_MS + 1, POLL_MS_MAX)) == 0:
                left_ns = deadline_ns - udp_monotonic_ns()


cdef class PacketCutter:
    """The frames of one connection; `number` identifies the connection. Call it in the loop's thread.

    At most `frames_max` frames wait in the intake; then `is_full` is true, and `tell_room` is called in the
    application's thread when half of them have been taken.
    """

    cdef readonly uint64_t number
    cdef PacketIntake _intake
    cdef Py_ssize_t _size_max
    cdef Py_ssize_t _frames_max
    cdef Py_ssize_t _frames
    cdef object _tell_room
    cdef bint _is_room_awaited
    cdef bint _is_off           # everything goes to the session
    cdef bytearray _kept        # an incomplete frame
    cdef Py_ssize_t _whole_size # its size when complete; 0 if unknown
    cdef DatagramBatch _batch
    cdef uint64_t _key

    def __cinit__(
        self, PacketIntake intake not None, uint64_t number, *_, Py_ssize_t frame_size_max, Py_ssize_t frames_max,
        tell_room not None,
    ):
        self.number = number
        self._intake = intake
        self._size_max = frame_size_max
        self._frames_max = frames_max
        self._tell_room = tell_room
        self._kept = bytearray()

    @property
    def is_full(self) -> bool:
        self._is_room_awaited = self._frames >= self._frames_max
        return self._is_room_awaited

    cpdef bytes feed(self, bytes data):
        """Put the frames with packets into the intake. Return the other whole frames, for the session."""
        cdef Py_ssize_t at = 0, begin, size
        cdef const uint8_t *start
        cdef list others = None
        if self._is_off:
            return data
        if self._kept:
            self._kept += data
            if len(self._kept) < self._whole_size:
                return b""
            data, self._kept = bytes(self._kept), bytearray()
        start = <const uint8_t *><const char *>data
        begin = 0
        while not self._is_off and len(data) - at >= LENGTH_SIZE:
            size = LENGTH_SIZE + <Py_ssize_t>load_length(start + at)
            if size - LENGTH_SIZE > self._size_max:
                self._is_off = True  # the session reports the error
            elif len(data) - at < size:
                break
            elif is_packets(start + at + LENGTH_SIZE, size - LENGTH_SIZE):
                self._frames += 1
                at += size
                continue
            elif not is_other(start + at + LENGTH_SIZE, size - LENGTH_SIZE):
                self._is_off = True
            self.put_frames(data, begin, at)
            others = others or []
            if self._is_off:
                others.append(data[at:])
                return b"".join(others)
            others.append(data[at : at + size])
            at += size
            begin = at
        self.put_frames(data, begin, at)
        if at < len(data):
            self._kept += data[at:]
            self._whole_size = size if len(data) - at >= LENGTH_SIZE else 0
        return b"".join(others) if others else b""

    def put(self, bytes frame not None) -> None:
        """Add a frame that the session has decoded."""
        if not is_packets(<const uint8_t *><const char *>frame + LENGTH_SIZE, len(frame) - LENGTH_SIZE):
            raise LocalProtocolError("the frame has no packets")
        self._frames += 1
        self.put_frames(frame, 0, len(frame))

    cdef int put_frames(self, bytes data, Py_ssize_t begin, Py_ssize_t end) except -1:
        if begin < end:
            self._intake.add((self, data, begin, end))
        return 0

    cdef int take_frame(self) except -1:
        """The application's thread has begun to read one of the frames."""
        self._frames -= 1
        if self._is_room_awaited and self._frames <= self._frames_max // 2:
            self._is_room_awaited = False
            self._tell_room()
        return 0

    cdef uint64_t key(self, DatagramBatch batch) except 0:
        if self._batch is not batch:
            self._batch, self._key = batch, batch.key_of(("", self.number))
        return self._key


cdef inline uint32_t load_length(const uint8_t *at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline uint32_t load_big(const uint8_t *at, int size) noexcept nogil:
    cdef uint32_t value = 0
    cdef int place
    for place in range(size):
        value = value << 8 | at[place]
    return value


cdef Py_ssize_t read_array(const uint8_t *at, Py_ssize_t size, uint32_t *count) noexcept nogil:
    """Read the head of a msgpack array. Return its size; 0 if there is none."""
    if size >= 1 and at[0] & 0xF0 == 0x90:
        count[0] = at[0] & 0x0F
        return 1
    if size >= 3 and at[0] == 0xDC:
        count[0] = load_big(at + 1, 2)
        return 3
    if size >= 5 and at[0] == 0xDD:
        count[0] = load_big(at + 1, 4)
        return 5
    return 0


cdef Py_ssize_t read_binary(const uint8_t *at, Py_ssize_t size, uint32_t *length) noexcept nogil:
    """Read the head of msgpack bytes. Return its size; 0 if there is none, or the bytes are not complete."""
    cdef Py_ssize_t head
    if size < 2 or not 0xC4 <= at[0] <= 0xC6:
        return 0
    head = 1 + (1 << (at[0] - 0xC4))
    if size < head:
        return 0
    length[0] = load_big(at + 1, <int>head - 1)
    return head if length[0] <= size - head else 0


cdef bint is_packets(const uint8_t *frame, Py_ssize_t size) noexcept nogil:
    """True if the frame consists of packets, in the encoding that read_array() and read_binary() read."""
    cdef Py_ssize_t at = HEAD_SIZE, head
    cdef uint32_t count, length
    if size < HEAD_SIZE or memcmp(frame, HEAD, HEAD_SIZE) != 0:
        return False
    head = read_array(frame + at, size - at, &count)
    if head == 0 or count > packets_max:
        return False
    at += head
    while count:
        head = read_binary(frame + at, size - at, &length)
        if head == 0 or length > packet_size_max:
            return False
        at += head + length
        count -= 1
    return at == size


cdef bint is_other(const uint8_t *frame, Py_ssize_t size) noexcept nogil:
    """True if the frame is a message of another type."""
    cdef Py_ssize_t length
    if size <= TYPE_AT or frame[0] & 0xF0 != 0x80 or memcmp(frame + 1, HEAD + 1, TYPE_AT - 1) != 0:
        return False
    length = frame[TYPE_AT] & 0x1F
    if frame[TYPE_AT] & 0xE0 != 0xA0 or size <= TYPE_AT + length:
        return False
    return length != TYPE_SIZE or memcmp(frame + TYPE_AT + 1, HEAD + TYPE_AT + 1, TYPE_SIZE) != 0
