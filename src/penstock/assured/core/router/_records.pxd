"""The records of a router's log: the payloads of its journal's records; docs/reference/protocol/assured.md draws them.

This is the only place where their layout is written down as numbers. Compiled code cimports it, Python imports the same
names from penstock.assured.core.router._records. The structs are the bytes: little-endian, every field at a multiple of its size,
every record a multiple of eight.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum:
    RECORD_MESSAGE = 1      # accepted, with the endpoints that it is queued to
    RECORD_MOVED = 2        # the same in its current state: replaces all earlier records of the message
    RECORD_SETTLED = 3      # ids that an endpoint no longer has
    RECORD_DEAD = 4         # an endpoint has moved a message to another one
    RECORD_TRANSACTION = 5  # records that take effect together or not at all
    RECORD_PUBLISHER = 6    # the known numbers of a publisher
    RECORD_ENDPOINT = 7     # the definition of an endpoint, or its deletion
    RECORD_EPOCH = 8        # the epoch, and the id up to which ids are taken
    RECORD_RETURNED = 9     # a message is back in its queue, with its number of deliveries
    RECORD_OWNER = 10       # the client that a publisher belongs to

    TREATMENT_NONE = 0
    TREATMENT_ASYNC = 1
    TREATMENT_SYNC = 2

    ENTRY_REDELIVERED = 1   # it may have been delivered before
    ENTRY_REPLAYED = 2      # queued from the log, when the endpoint was created
    ENTRY_DEAD = 4          # moved from another endpoint: its own time to live no longer counts
    ENTRY_CONSUMED = 8      # of a destination: consumed by a transaction that the other router may not have
    ENTRY_WHY_SHIFT = 4     # above: with ENTRY_DEAD, the reason
    ENTRY_WHY_MASK = 0x70

    WHY_REJECTED = 1        # by a consumer
    WHY_DELIVERIES = 2      # maximum number of deliveries reached
    WHY_EXPIRED = 3         # time to live expired, or too old for the endpoint
    WHY_OVERFLOWED = 4      # the endpoint had no room for it

    WHEN_COPIED = 1         # flag of a SETTLED or DEAD record of a transaction: effective once the other router has it

    UNDONE = 2              # flag of a SETTLED record: synchronous messages that are undone; see _receiving.undo

    AT_ONE = 1              # flag of a TRANSACTION or PUBLISHER record: some of the transaction may be at the other router only

    ENDPOINT_DELETED = 1    # flag of an ENDPOINT record
    EPOCH_STANDBY = 1       # flags of an EPOCH record
    EPOCH_DEGRADED = 2      # as the active router it has acknowledged messages that the other router may lack
    EPOCH_PARTIAL = 4       # while catching up: it has neither its old state nor the active router's

    MESSAGE_TO_MATCH = 64   # flag of a MESSAGE record between routers: the receiver matches the message
    MESSAGE_TOGETHER = 128  # flag of a MESSAGE or MOVED record: the message was published in a transaction

    HEAD_SIZE = 8
    MESSAGE_HEAD_SIZE = 64
    DESTINATION_SIZE = 16
    SETTLED_HEAD_SIZE = 16
    ID_RUN_SIZE = 16
    DEAD_SIZE = 24
    RETURNED_SIZE = 24
    OWNER_SIZE = 24
    TRANSACTION_HEAD_SIZE = 32
    PUBLISHER_HEAD_SIZE = 40
    WINDOW_WORDS = 64       # of 64 bits: one for each number of a publisher's window
    ENDPOINT_HEAD_SIZE = 16
    EPOCH_SIZE = 40

    ENDPOINT_NUMBER_MAX = 16_777_216 # a table has a slot for each number up to the highest

    LOG_RECORD_SIZE_MAX = 16_777_216 - 65_536 # maximum size of a journal record, with some margin


cdef struct RecordHead:     # the begin of every record
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t size           # total size


cdef struct MessageHead:    # destinations, topic, payload and zeros follow
    uint8_t kind
    uint8_t flags
    uint8_t priority
    uint8_t treatment
    uint32_t size
    uint32_t payload_size
    uint16_t topic_size
    uint16_t destination_count
    uint64_t id
    uint64_t publisher
    uint64_t number
    int64_t published_ns
    int64_t expires_ns      # 0: never
    uint16_t model_id
    uint16_t model_version
    uint32_t matched        # 0; with MESSAGE_TO_MATCH: hash of the endpoints to be found


cdef struct Destination:
    uint32_t endpoint
    uint16_t deliveries
    uint16_t flags
    uint32_t given_up_by    # with ENTRY_DEAD: the source endpoint; 0: unknown
    uint32_t reserved


cdef struct SettledHead:    # runs follow
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t size
    uint32_t endpoint
    uint32_t count


cdef struct IdRun:          # an inclusive range of ids that the endpoint has
    uint64_t first
    uint64_t last


cdef struct DeadRecord:
    uint8_t kind
    uint8_t flags
    uint8_t why             # WHY_REJECTED and so on
    uint8_t reserved
    uint32_t size
    uint32_t source
    uint32_t target         # 0: it is discarded
    uint64_t id


cdef struct TransactionHead: # MESSAGE, SETTLED, DEAD and RETURNED records follow
    uint8_t kind
    uint8_t treatment       # the highest id in it
    uint16_t flags
    uint32_t size
    uint64_t publisher      # 0: repeats what the transaction consumed, and nothing else
    uint32_t transaction
    uint32_t reserved_too
    uint64_t id             # id of its last message; if it publishes none, an id of its own


cdef struct PublisherHead:  # WINDOW_WORDS words follow, or none if all bits are set
    uint8_t kind
    uint8_t treatment       # of its last transaction
    uint16_t flags          # of the same transaction
    uint32_t size
    uint64_t publisher
    uint64_t highest
    uint32_t transaction
    uint32_t word_count
    uint64_t owner          # 0: unknown


cdef struct ReturnedRecord:
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t size
    uint32_t endpoint
    uint32_t deliveries
    uint64_t id


cdef struct OwnerRecord:
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t size
    uint64_t publisher
    uint64_t owner          # hash of the client's name


cdef struct EndpointHead:   # the definition follows as JSON, then zeros
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t size
    uint32_t endpoint
    uint32_t text_size


cdef struct EpochRecord:
    uint8_t kind
    uint8_t flags
    uint16_t reserved
    uint32_t size
    uint64_t epoch
    uint64_t id_highest
    uint64_t since_epoch    # when it became active after the other router; 0: never
    uint64_t since_id       # the last message of the other router that it had then


cdef inline uint64_t message_record_size(uint64_t destinations, uint64_t topic_size, uint64_t payload_size) noexcept nogil:
    return (MESSAGE_HEAD_SIZE + destinations * DESTINATION_SIZE + topic_size + payload_size + 7) & ~<uint64_t>7


cdef inline uint64_t content_at(const MessageHead *head) noexcept nogil:
    """Offset of the topic; the payload follows."""
    return MESSAGE_HEAD_SIZE + <uint64_t>head.destination_count * DESTINATION_SIZE


# Return the size of the record that begins here, if it is valid and ends within `size` bytes; otherwise 0. The records
# within a transaction are checked, too.
cdef uint32_t check_record(const uint8_t *record, uint64_t size) noexcept nogil
