"""The queue of one link, as functions on a struct."""

from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from penstock.tree.core.kernel._frame cimport BLOCK_HEADER_SIZE, BLOCK_SIZE_MAX, KIND_PACKETS, write_block_header
from penstock.tree.core.kernel._history cimport History, packet_at
from penstock.tree.core.kernel._newest cimport newest_free, newest_shift

cdef enum:
    RUNS_MIN = 16
    RUNS_KEPT = 64  # when the queue is empty
    CONTROL_KEPT = 4_096  # memory kept when no control frames wait
    PACKETS_SIZE_MAX = BLOCK_SIZE_MAX - BLOCK_HEADER_SIZE  # of one block


cdef void queue_init(Queue *queue) noexcept nogil:
    memset(queue, 0, sizeof(Queue))
    queue.last_place = UINT64_MAX


cdef void queue_free(Queue *queue) noexcept nogil:
    free(queue.runs)
    free(queue.control)
    newest_free(&queue.newest)
    queue_init(queue)


cdef bint make_room(Queue *queue) noexcept nogil:
    """Make room for one more run; False without memory."""
    cdef uint64_t capacity, position
    cdef Run *runs
    if queue.end - queue.begin < queue.capacity:
        return True
    capacity = max(2 * queue.capacity, <uint64_t>RUNS_MIN)
    runs = <Run *>malloc(capacity * sizeof(Run))
    if runs is NULL:
        return False
    for position in range(queue.begin, queue.end):
        runs[position & (capacity - 1)] = run_at(queue, position)[0]
    free(queue.runs)
    queue.runs = runs
    queue.capacity = capacity
    return True


cdef bint queue_put(Queue *queue, uint64_t place, uint32_t size) noexcept nogil:
    """Queue a packet behind all runs; False without memory."""
    cdef Run *run
    if queue.end > queue.begin:
        run = run_at(queue, queue.end - 1)
        if run.count and run.place + run.size == place and run.size + size <= PACKETS_SIZE_MAX:
            run.size += size
            run.count += 1
            queue.packets += 1
            queue.bytes += size
            return True
    if not make_room(queue):
        return False
    run = run_at(queue, queue.end)
    run.place = place
    run.size = size
    run.count = 1
    queue.end += 1
    queue.packets += 1
    queue.bytes += size
    return True


cdef bint queue_control(Queue *queue, const uint8_t *data, uint64_t size, bint is_behind) noexcept nogil:
    cdef uint64_t waiting = queue.control_end - queue.control_begin
    cdef void *bigger
    cdef Run *run
    if (is_behind and not settle(queue)) or not make_room(queue):
        return False
    if queue.control_begin and queue.control_end + size > queue.control_capacity:
        memmove(queue.control, queue.control + queue.control_begin, waiting)
        queue.control_begin = 0
        queue.control_end = waiting
    if queue.control_end + size > queue.control_capacity:
        bigger = realloc(queue.control, max(waiting + size, 2 * waiting))
        if bigger is NULL:
            return False
        queue.control = <uint8_t *>bigger
        queue.control_capacity = max(waiting + size, 2 * waiting)
    memcpy(queue.control + queue.control_end, data, size)
    queue.control_end += size
    run = run_at(queue, queue.end)
    run.place = 0
    run.size = <uint32_t>size
    run.count = 0
    queue.end += 1
    queue.bytes += size
    return True


cdef bint settle(Queue *queue) noexcept nogil:
    """Prepare for control frames behind the waiting newest packets: these are put into runs, in order with the
    existing ones, and are no longer replaced. This is rare: a conflating link gets a message about a stream while it
    lags."""
    cdef uint64_t position, count = queue.end - queue.begin, newest = queue.newest.count
    cdef uint64_t capacity = RUNS_MIN, end = 0
    cdef Run *runs
    if newest == 0:
        return True
    while capacity < count + newest + 1:
        capacity *= 2
    runs = <Run *>malloc(capacity * sizeof(Run))
    if runs is NULL:
        return False
    position = queue.begin
    while position < queue.end or queue.newest.count:
        if is_newest_next(queue, position):
            runs[end].place = queue.newest.rows[queue.newest.first].place
            runs[end].size = queue.newest.rows[queue.newest.first].size
            runs[end].count = 1
            queue.packets += 1
            queue.bytes += runs[end].size
            newest_shift(&queue.newest)
        else:
            runs[end] = run_at(queue, position)[0]
            position += 1
        end += 1
    free(queue.runs)
    queue.runs = runs
    queue.capacity = capacity
    queue.begin = 0
    queue.end = end
    return True


cdef inline bint is_newest_next(const Queue *queue, uint64_t position) noexcept nogil:
    """True if the first of the newest packets comes before the run at this position."""
    cdef const Run *run
    if queue.newest.count == 0:
        return False
    if position == queue.end:
        return True
    run = run_at(queue, position)
    return run.count and queue.newest.rows[queue.newest.first].place < run.place


cdef inline void add_piece(Pieces *pieces, const uint8_t *data, uint64_t size) noexcept nogil:
    pieces.pieces[pieces.count].iov_base = <void *>data
    pieces.pieces[pieces.count].iov_len = size
    pieces.count += 1
    pieces.size += size


cdef bint take_run(Queue *queue, Run *run) noexcept nogil:
    """Return the next packets to send, if packets are next."""
    if queue.begin == queue.end and queue.newest.count == 0:
        return False
    if is_newest_next(queue, queue.begin):
        run.place = queue.newest.rows[queue.newest.first].place
        run.size = queue.newest.rows[queue.newest.first].size
        run.count = 1
        newest_shift(&queue.newest)
        return True
    run[0] = run_at(queue, queue.begin)[0]
    if run.count == 0:
        return False
    queue.begin += 1
    queue.packets -= run.count
    queue.bytes -= run.size
    return True


cdef uint32_t next_size(const Queue *queue) noexcept nogil:
    """Size of the next run of packets or control frames; 0: the queue is empty."""
    if is_newest_next(queue, queue.begin):
        return queue.newest.rows[queue.newest.first].size
    return 0 if queue.begin == queue.end else run_at(queue, queue.begin).size


cdef void queue_take(Queue *queue, History history, uint64_t size_max, Pieces *pieces) noexcept nogil:
    cdef Run run
    cdef uint8_t *header
    cdef uint32_t block_size
    cdef uint64_t next_bytes
    pieces.count = pieces.headers_used = 0
    pieces.size = pieces.packets = pieces.control = 0
    while pieces.count + 2 <= PIECES_MAX and pieces.headers_used < HEADERS_MAX:
        next_bytes = next_size(queue)
        if next_bytes == 0 or (pieces.size and pieces.size + next_bytes + BLOCK_HEADER_SIZE > size_max):
            return
        if not take_run(queue, &run):
            take_words(queue, pieces)
            continue
        header = &pieces.headers[pieces.headers_used][0]
        pieces.headers_used += 1
        add_piece(pieces, header, BLOCK_HEADER_SIZE)
        block_size = 0
        while True:
            add_piece(pieces, packet_at(history, run.place), run.size)
            block_size += run.size
            pieces.packets += run.count
            next_bytes = next_size(queue)
            if (
                next_bytes == 0
                or block_size + next_bytes > PACKETS_SIZE_MAX
                or pieces.size + next_bytes > size_max
                or pieces.count == PIECES_MAX
                or not take_run(queue, &run)
            ):
                break
        write_block_header(header, KIND_PACKETS, 0, block_size)


cdef void take_words(Queue *queue, Pieces *pieces) noexcept nogil:
    cdef Run *run = run_at(queue, queue.begin)
    add_piece(pieces, queue.control + queue.control_begin + pieces.control, run.size)
    pieces.control += run.size
    queue.begin += 1
    queue.bytes -= run.size


cdef void queue_sent(Queue *queue, const Pieces *pieces) noexcept nogil:
    queue.control_begin += pieces.control
    if queue.control_begin == queue.control_end:
        queue.control_begin = queue.control_end = 0
        if queue.control_capacity > CONTROL_KEPT:
            free(queue.control)
            queue.control = NULL
            queue.control_capacity = 0
    if queue.begin == queue.end:
        queue.begin = queue.end = 0
        if queue.capacity > RUNS_KEPT:
            free(queue.runs)
            queue.runs = NULL
            queue.capacity = 0


cdef void queue_drop_packets(Queue *queue) noexcept nogil:
    cdef uint64_t position, end = queue.begin
    for position in range(queue.begin, queue.end):
        if run_at(queue, position).count == 0:
            run_at(queue, end)[0] = run_at(queue, position)[0]
            end += 1
    queue.end = end
    queue.packets = 0
    queue.bytes = queue.control_end - queue.control_begin
    newest_free(&queue.newest)


cdef bint queue_front(const Queue *queue, uint64_t *place) noexcept nogil:
    cdef uint64_t position
    place[0] = UINT64_MAX
    for position in range(queue.begin, queue.end):
        if run_at(queue, position).count:
            place[0] = run_at(queue, position).place
            break
    if queue.newest.count and queue.newest.rows[queue.newest.first].place < place[0]:
        place[0] = queue.newest.rows[queue.newest.first].place
    return place[0] != UINT64_MAX
