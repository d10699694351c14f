"""Copies at the other router of a pair; _mirroring.pxd describes the functions."""

from libc.stdint cimport uint32_t, uint64_t

from penstock.assured.core.router._containers cimport map_get, push
from penstock.assured.core.router._tables cimport (
    STATE_CONSUMED_THERE,
    STATE_REJECTED,
    Endpoint,
    Entry,
    Tables,
    entry_at,
    message_at,
)


cdef bint is_mirrored(Tables tables, uint32_t endpoint) noexcept:
    """If endpoints decide on replication, unreplicated endpoints have no copies (REPL-4); nor have deleted ones."""
    cdef const Endpoint *known = tables.endpoint_of(endpoint)
    return known is not NULL and not known.is_absent and (tables.replicate_by != 0 or known.treatment != 0)


def set_absent(Tables tables not None, list numbers not None) -> None:
    """Set the endpoints that the other router lacks; it has all others. Lacking endpoints have no copies until it has
    them."""
    cdef uint32_t number
    cdef Endpoint *endpoint
    for number in range(1, tables.endpoint_end):
        endpoint = tables.endpoint_of(number)
        if endpoint is not NULL:
            endpoint.is_absent = False
    for number in numbers:
        endpoint = tables.endpoint_of(number)
        if endpoint is not NULL:
            endpoint.is_absent = True
    tables.replication.set_absent_count(<uint32_t>len(numbers))


cdef bint is_at_absent(Tables tables, uint64_t id) noexcept:
    cdef uint32_t place = map_get(&tables.ids, id) if tables.replication.absent_count else 0
    cdef uint32_t each = message_at(tables, place).entries if place else 0
    while each and not tables.endpoints[entry_at(tables, each).endpoint].is_absent:
        each = entry_at(tables, each).sibling
    return each != 0


cdef uint32_t copied_to(Tables tables, uint32_t entry) noexcept:
    cdef uint32_t number = entry_at(tables, entry).endpoint
    if entry_at(tables, entry).state == STATE_REJECTED:
        return given_up_to(tables, entry)
    if entry_at(tables, entry).state == STATE_CONSUMED_THERE or not is_mirrored(tables, number):
        return 0
    return number


cdef uint32_t given_up_to(Tables tables, uint32_t entry) noexcept:
    """The mirrored dead-letter endpoint that the entry moves to; 0: none, or it has the message already."""
    cdef uint32_t each = message_at(tables, entry_at(tables, entry).message).entries
    cdef uint32_t target = entry_at(tables, entry).next
    cdef const Entry *other
    cdef bint is_before = True
    if not is_mirrored(tables, target):
        return 0
    while each:
        other = entry_at(tables, each)
        is_before = is_before and each != entry
        if other.endpoint == target:
            return 0
        if is_before and other.state == STATE_REJECTED and other.next == target:
            return 0
        each = other.sibling
    return target


cdef uint32_t target_now(Tables tables, uint32_t endpoint, uint32_t target) noexcept:
    if target == 0 or tables.endpoint_of(target) is not NULL:
        return target
    return tables.endpoints[endpoint].dead_to


cdef int hold_back(Tables tables, uint32_t message) except -1:
    cdef uint64_t id = message_at(tables, message).id
    cdef uint32_t each = message_at(tables, message).entries
    cdef Endpoint *endpoint
    while each:
        endpoint = tables.endpoints[entry_at(tables, each).endpoint]
        if endpoint.held_last == 0:
            push(&tables.held, endpoint.number)
        if endpoint.held_last == 0 or id < endpoint.held_first:
            endpoint.held_first = id
        endpoint.held_last = max(endpoint.held_last, id)
        each = entry_at(tables, each).sibling
    return 0


cdef int release_held(Tables tables, uint64_t through_id) except -1:
    cdef uint64_t index, count = 0
    cdef uint32_t number
    cdef Endpoint *endpoint
    for index in range(tables.held.count):
        number = tables.held.items[index]
        endpoint = tables.endpoint_of(number)
        if endpoint is NULL or endpoint.held_last == 0: # it was deleted meanwhile
            continue
        if endpoint.held_first <= through_id:
            endpoint.held_first = through_id + 1
            tables.note_ready(endpoint)
        if endpoint.held_last <= through_id:
            endpoint.held_first = endpoint.held_last = 0
            continue
        tables.held.items[count] = number
        count += 1
    tables.held.count = count
    return 0


cdef void forget_held(Tables tables) noexcept:
    cdef uint64_t index
    cdef Endpoint *endpoint
    for index in range(tables.held.count):
        endpoint = tables.endpoint_of(tables.held.items[index])
        if endpoint is not NULL:
            endpoint.held_first = endpoint.held_last = 0
    tables.held.count = 0
