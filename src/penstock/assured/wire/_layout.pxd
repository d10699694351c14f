"""The data frames of assured messaging; docs/reference/protocol/assured.md has drawings.

Only this file defines their layout in numbers. Compiled code cimports it, Python imports the same names from
penstock.assured.wire._layout. The structs are the bytes: little-endian, every field aligned to its size.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum:
    LENGTH_SIZE = 4  # of net.framing; the length counts the following bytes
    FRAME_SIZE_MAX = 8_454_144  # of any frame, without its length
    PEER_FRAME_SIZE_MAX = 16_777_216  # between routers: the largest record of the log, with its header
    PAYLOAD_SIZE_MAX = 8_388_608  # of one message; a router may have a lower limit
    FRAME_MESSAGES_MAX = 4_096
    FRAME_RUNS_MAX = 16_384
    WINDOW_MAX = 4_096  # maximum number of unacknowledged messages of one publisher
    ALIGNMENT = 8

    KIND_PUBLISH = 1
    KIND_ACKNOWLEDGE = 2
    KIND_DELIVER = 3
    KIND_SETTLE = 4
    KIND_CREDIT = 5
    KIND_REPLICATION = 6  # the first kind between routers
    KIND_LIVE = 6  # ids of an endpoint of the active router
    KIND_MISSING = 7  # of these, the ids that the standby lacks
    KIND_RECORDS = 8  # records of the log, for the standby's log
    KIND_PUBLISHERS = 9  # the state of publishers, as records of the log
    KIND_TOGETHER = 10  # messages of a transaction that has not ended
    KIND_SPLICED = 11  # records without the parts sent with TOGETHER
    KIND_REPLICATION_LAST = 12
    KIND_BESIDE = 12  # other messages between routers
    KIND_CONTROL = 0x80  # and above: the first byte of a message in msgpack

    PRIORITY_MAX = 9
    PRIORITY_DEFAULT = 4

    MESSAGE_WANTS_SYNC = 1  # flags of a published message
    MESSAGE_WANTS_ASYNC = 2
    MESSAGE_RESENT = 4  # it was sent before, and its outcome is unknown

    DELIVERY_REDELIVERED = 1  # flags of a delivered message: it may have been delivered before
    DELIVERY_WHY_SHIFT = 4  # above: the reason of a dead letter, as in the log
    DELIVERY_REPLAYED = 2  # from the retained log, before the endpoint was created

    OUTCOME_STORED = 1
    OUTCOME_ASYNC = 2
    OUTCOME_SYNC = 3
    OUTCOME_DEGRADED = 4  # synchronous was requested; the standby does not have it yet
    OUTCOME_KNOWN = 5  # it was sent again, and is stored; its treatment was reported the first time
    OUTCOME_UNMATCHED = 6  # no endpoint matched: it is discarded
    OUTCOME_REFUSED = 32  # and above: it is not stored
    OUTCOME_NO_ENDPOINT = 32
    OUTCOME_FULL = 33
    OUTCOME_TOO_LARGE = 34
    OUTCOME_NOT_ENTITLED = 35
    OUTCOME_BAD_TOPIC = 36
    OUTCOME_EXPIRED = 37
    OUTCOME_DISK = 38
    OUTCOME_LIMIT = 39  # the router has no room for more messages
    OUTCOME_TRANSACTION = 40  # it belongs to no open transaction

    LIMIT_MESSAGES = 1  # of a full endpoint
    LIMIT_BYTES = 2

    SETTLE_ACKNOWLEDGED = 1
    SETTLE_RETURNED = 2  # back to the queue
    SETTLE_REJECTED = 3  # to the dead-letter endpoint

    PUBLISH_HEAD_SIZE = 24
    PUBLISHED_HEAD_SIZE = 24
    ACKNOWLEDGE_HEAD_SIZE = 8
    RUN_SIZE = 24
    DELIVER_HEAD_SIZE = 8
    DELIVERED_HEAD_SIZE = 56
    SETTLE_HEAD_SIZE = 16
    CREDIT_SIZE = 16
    RECORDS_HEAD_SIZE = 16
    TOGETHER_HEAD_SIZE = 8
    SPLICED_HEAD_SIZE = 8
    PIECE_SIZE = 16

    TOGETHER_FORGOTTEN = 1  # flag of TOGETHER: the buffered bytes are no longer needed


cpdef enum FrameError:
    """The error in a data frame; its link ends."""
    FRAME_GOOD = 0
    FRAME_SHORT = 1  # it ends within its header
    FRAME_KIND = 2  # unknown kind
    FRAME_COUNT = 3  # it has no parts, too many, or another number than stated
    FRAME_LENGTH = 4  # a message exceeds it, or parts exceed the message
    FRAME_VALUE = 5  # a field has an invalid value


cdef struct PublishHead:
    uint8_t kind
    uint8_t flags
    uint16_t count
    uint32_t publisher  # the link's number
    uint32_t transaction  # 0: none
    uint32_t reserved
    uint64_t first_number  # of its first message; the others follow


cdef struct PublishedHead:  # of each message; topic, payload and zeros follow
    uint32_t size  # total size
    uint32_t payload_size
    uint16_t topic_size
    uint8_t priority
    uint8_t flags
    uint16_t model_id
    uint16_t model_version
    uint32_t ttl_ms  # 0: none
    uint32_t reserved


cdef struct AcknowledgeHead:
    uint8_t kind
    uint8_t flags
    uint16_t count
    uint32_t publisher


cdef struct Run:  # of numbers with an outcome, or of ids with a settlement
    uint64_t first
    uint64_t last
    uint8_t what
    uint8_t limit  # of the full endpoint
    uint16_t reserved
    uint32_t endpoint  # the full endpoint; 0: none


cdef struct DeliverHead:
    uint8_t kind
    uint8_t flags
    uint16_t count
    uint32_t flow  # the link's number


cdef struct DeliveredHead:  # of each message; topic, payload and zeros follow
    uint32_t size
    uint32_t payload_size
    uint16_t topic_size
    uint8_t priority
    uint8_t flags
    uint16_t model_id
    uint16_t model_version
    uint32_t deliveries  # number of earlier deliveries, as far as the router knows
    uint32_t given_up_by  # the source of a dead letter; 0: none or unknown
    uint64_t id
    int64_t published_ns  # arrival, by the router's wall clock
    uint64_t publisher  # the publisher's own id
    uint64_t number


cdef struct SettleHead:
    uint8_t kind
    uint8_t flags
    uint16_t count
    uint32_t flow
    uint32_t transaction
    uint32_t reserved


cdef struct Credit:
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t flow
    uint64_t total  # total number of deliveries allowed on this flow


cdef struct RecordsHead:  # of RECORDS and PUBLISHERS; records of the log follow
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t count
    uint64_t position  # of the last record, counted since the stream began


cdef struct TogetherHead:  # bytes follow, appended to those of that number
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t number  # the link's number of the transaction


cdef struct SplicedHead:  # pieces follow, then the bytes of this frame
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t count


cdef struct Piece:  # of a RECORDS frame
    uint32_t said  # number of bytes from this frame,
    uint32_t number  # then number of bytes held under this number
    uint32_t offset
    uint32_t size


# The size of a message, including padding.
cdef inline uint64_t published_size(uint32_t topic_size, uint64_t payload_size) noexcept nogil:
    return (PUBLISHED_HEAD_SIZE + topic_size + payload_size + ALIGNMENT - 1) & ~<uint64_t>(ALIGNMENT - 1)


cdef inline uint64_t delivered_size(uint32_t topic_size, uint64_t payload_size) noexcept nogil:
    return (DELIVERED_HEAD_SIZE + topic_size + payload_size + ALIGNMENT - 1) & ~<uint64_t>(ALIGNMENT - 1)
