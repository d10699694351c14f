"""The stream of what happens, for the other router; _stream.pxd says what is in it."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove

from penstock.assured._tables cimport Tables


cdef void stream_push(Tables tables, uint64_t id, uint64_t number, uint32_t party, uint32_t what) noexcept:
    """Never fails: a stream that cannot grow is broken, and whoever sends it begins anew."""
    cdef uint64_t size = tables.stream.size, capacity
    cdef void *larger
    if tables.is_stream_broken:
        return
    if size + sizeof(Item) > tables.stream.capacity:
        if tables.stream_first > size // 2: # what is at the front has been sent
            memmove(tables.stream.data, tables.stream.data + tables.stream_first, size - tables.stream_first)
            tables.stream.size = size = size - tables.stream_first
            tables.stream_first = 0
        else:
            capacity = max(<uint64_t>(256 * sizeof(Item)), 2 * tables.stream.capacity)
            larger = realloc(tables.stream.data, capacity) if capacity <= ITEMS_MAX * sizeof(Item) else NULL
            if larger is NULL:
                tables.is_stream_broken = True
                return
            tables.stream.data = <unsigned char *>larger
            tables.stream.capacity = capacity
    (<Item *>(tables.stream.data + size))[0] = Item(id, number, party, what)
    tables.stream.size = size + sizeof(Item)


cdef bint is_mirrored(Tables tables, uint32_t endpoint) noexcept:
    """Where endpoints decide, those that are not replicated have no copies (REPL-4)."""
    return tables.replicate_by != 0 or tables.endpoints[endpoint].treatment != 0
