"""Notes of the data path for Python, made without Python; notices.py describes them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum NoteKind:
    NOTE_CONTROL
    NOTE_LEG_BLOCK
    NOTE_PUBLISHED
    NOTE_INFO
    NOTE_NEWER_TERM
    NOTE_LEFT_LIVE
    NOTE_ENDED


cpdef enum LinkFault:
    """The reason why a link ends."""
    FAULT_CLOSED = 0  # the peer has closed it
    FAULT_CUT = 1  # the connection broke within a frame, or with an error
    FAULT_SLOW = 2  # the peer does not keep up, and its class is disconnected
    FAULT_FRAME = 3  # a frame that is too long, or of unknown kind
    FAULT_UNEXPECTED = 4  # a block that this party may not send
    FAULT_INFO = 5  # the infostream, from a party that is not an agent
    FAULT_PACKET = 6  # a block that has incomplete or damaged packets
    FAULT_MEMORY = 7  # no memory is left for it


cdef struct Note:
    uint64_t link
    uint64_t number  # a sequence
    uint8_t *data  # owned by the note
    uint64_t size
    uint64_t capacity
    uint32_t leg  # or the stream
    uint32_t code  # of a fault, or the term
    uint8_t kind


cdef struct Notes:
    Note *rows
    uint64_t count
    uint64_t capacity
    uint64_t total  # ever made
    uint64_t bytes  # of data in the current notes


cdef Note *note(Notes *notes, uint8_t kind, uint64_t link) noexcept nogil

# Make a note with a copy of these bytes; False without memory.
cdef bint note_data(Notes *notes, uint8_t kind, uint64_t link, uint32_t leg, const uint8_t *data, uint64_t size) noexcept nogil

# Append the publisher's packets to its previous note, if Python has not read that yet and the result fits into a block.
cdef bint note_published(Notes *notes, uint64_t link, const uint8_t *data, uint64_t size) noexcept nogil

cdef void notes_free(Notes *notes) noexcept nogil

# The first ones, at most `count_max`.
cdef list notes_as_notices(Notes *notes, uint64_t count_max)
