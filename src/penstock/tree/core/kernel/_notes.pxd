"""What the data path notes for Python while it runs without it: notices.py has what becomes of each."""

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
    """Why a link ends."""
    FAULT_CLOSED = 0        # the other side has ended it
    FAULT_CUT = 1           # in the midst of a frame, or with an error
    FAULT_SLOW = 2          # it does not keep up, and is of the class that is cut off
    FAULT_FRAME = 3         # a frame that is too long, or of no kind
    FAULT_UNEXPECTED = 4    # a block that such a party does not send
    FAULT_INFO = 5          # the infostream, from a party that is no agent
    FAULT_PACKET = 6        # a block that is not whole packets, or one that is damaged
    FAULT_MEMORY = 7        # there is none left for it


cdef struct Note:
    uint64_t link
    uint64_t number         # a sequence
    uint8_t *data           # of its own
    uint64_t size
    uint64_t capacity
    uint32_t leg            # or the stream
    uint32_t code           # of a fault, or the term
    uint8_t kind


cdef struct Notes:
    Note *rows
    uint64_t count
    uint64_t capacity
    uint64_t total          # ever made
    uint64_t bytes          # of data in those that are here


cdef Note *note(Notes *notes, uint8_t kind, uint64_t link) noexcept nogil

# With a copy of these bytes; False without memory.
cdef bint note_data(Notes *notes, uint8_t kind, uint64_t link, uint32_t leg, const uint8_t *data, uint64_t size) noexcept nogil

# The publisher's packets go to those that it sent just before, if Python has not seen these yet and all of them are no
# more than a block can have.
cdef bint note_published(Notes *notes, uint64_t link, const uint8_t *data, uint64_t size) noexcept nogil

cdef void notes_free(Notes *notes) noexcept nogil

# The first ones, at most so many.
cdef list notes_as_notices(Notes *notes, uint64_t count_max)
