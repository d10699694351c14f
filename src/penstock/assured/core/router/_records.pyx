"""Records of a router's log are checked here before any use."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.base import limits

cdef uint32_t TOPIC_SIZE_MAX = limits.TOPIC_SIZE_MAX
cdef uint64_t EVERY_ID = <uint64_t>-1 # of no message: there is none behind it


cdef bint is_message(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef MessageHead head
    cdef Destination destination
    cdef uint32_t index
    if size < MESSAGE_HEAD_SIZE:
        return False
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    if head.topic_size > TOPIC_SIZE_MAX or head.priority > 9 or head.treatment > TREATMENT_SYNC:
        return False
    if head.id == 0 or head.id == EVERY_ID or head.publisher == 0:
        return False
    if size != message_record_size(head.destination_count, head.topic_size, head.payload_size):
        return False
    for index in range(head.destination_count):
        memcpy(&destination, record + MESSAGE_HEAD_SIZE + index * DESTINATION_SIZE, DESTINATION_SIZE)
        if destination.endpoint > ENDPOINT_NUMBER_MAX:
            return False
    return True


cdef bint is_settled(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef SettledHead head
    if size < SETTLED_HEAD_SIZE:
        return False
    memcpy(&head, record, SETTLED_HEAD_SIZE)
    return size == SETTLED_HEAD_SIZE + <uint64_t>head.count * ID_RUN_SIZE


cdef bint is_dead(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef DeadRecord dead
    if size != DEAD_SIZE:
        return False
    memcpy(&dead, record, DEAD_SIZE)
    return dead.target <= ENDPOINT_NUMBER_MAX


cdef bint is_transaction(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef TransactionHead head
    cdef uint32_t at = TRANSACTION_HEAD_SIZE
    cdef uint32_t inner
    if size < TRANSACTION_HEAD_SIZE:
        return False
    memcpy(&head, record, TRANSACTION_HEAD_SIZE)
    if head.id == EVERY_ID:
        return False
    while at < size:
        if record[at] not in (RECORD_MESSAGE, RECORD_SETTLED, RECORD_DEAD, RECORD_RETURNED):
            return False # transactions are not nested, so a record cannot choose the depth of this recursion
        inner = check_record(record + at, size - at)
        if inner == 0:
            return False
        at += inner
    return True


cdef bint is_publisher(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef PublisherHead head
    if size < PUBLISHER_HEAD_SIZE:
        return False
    memcpy(&head, record, PUBLISHER_HEAD_SIZE)
    if head.publisher == 0 or (head.word_count != 0 and head.word_count != WINDOW_WORDS):
        return False
    return size == PUBLISHER_HEAD_SIZE + head.word_count * 8


cdef bint is_owner(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef OwnerRecord owner
    if size != OWNER_SIZE:
        return False
    memcpy(&owner, record, OWNER_SIZE)
    return owner.publisher != 0


cdef bint is_epoch(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef EpochRecord epoch
    if size != EPOCH_SIZE:
        return False
    memcpy(&epoch, record, EPOCH_SIZE)
    return epoch.id_highest != EVERY_ID


cdef bint is_endpoint(const uint8_t *record, uint32_t size) noexcept nogil:
    cdef EndpointHead head
    if size < ENDPOINT_HEAD_SIZE:
        return False
    memcpy(&head, record, ENDPOINT_HEAD_SIZE)
    if head.endpoint == 0 or head.endpoint > ENDPOINT_NUMBER_MAX:
        return False
    return size == (ENDPOINT_HEAD_SIZE + <uint64_t>head.text_size + 7) & ~<uint64_t>7


cdef uint32_t check_record(const uint8_t *record, uint64_t size) noexcept nogil:
    cdef RecordHead head
    cdef bint is_good = False
    if size < HEAD_SIZE:
        return 0
    memcpy(&head, record, HEAD_SIZE)
    if head.size < HEAD_SIZE or head.size > size or head.size % 8:
        return 0
    if head.kind == RECORD_MESSAGE or head.kind == RECORD_MOVED:
        is_good = is_message(record, head.size)
    elif head.kind == RECORD_SETTLED:
        is_good = is_settled(record, head.size)
    elif head.kind == RECORD_DEAD:
        is_good = is_dead(record, head.size)
    elif head.kind == RECORD_TRANSACTION:
        is_good = is_transaction(record, head.size)
    elif head.kind == RECORD_PUBLISHER:
        is_good = is_publisher(record, head.size)
    elif head.kind == RECORD_ENDPOINT:
        is_good = is_endpoint(record, head.size)
    elif head.kind == RECORD_EPOCH:
        is_good = is_epoch(record, head.size)
    elif head.kind == RECORD_RETURNED:
        is_good = head.size == RETURNED_SIZE
    elif head.kind == RECORD_OWNER:
        is_good = is_owner(record, head.size)
    return head.size if is_good else 0


def is_record(const uint8_t[::1] record not None) -> bool:
    """True if these bytes are exactly one record."""
    cdef uint64_t size = record.shape[0]
    return size > 0 and check_record(&record[0], size) == size
