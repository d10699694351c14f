"""What a converter works with: registers for the message at hand, and the memory that outputs go into."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.convert.kernel._program cimport Map, Output
from penstock.convert.books._units cimport State
from penstock.wire._codec cimport MessageView


cdef struct Text:
    const uint8_t *at
    uint64_t size


cdef struct TopicPlace:
    uint32_t offset
    uint32_t size


cdef struct Frame:
    int64_t registers[168]
    Text texts[32]
    Text columns[64]
    uint32_t column_count
    # the source message
    const uint8_t *data
    uint32_t size
    int32_t instrument      # -1: none
    uint16_t index          # of the next output within the source message
    # the plan
    const Map *maps
    const Output *outputs
    void *functions         # the Program's tuple
    void *kept              # a list that keeps what functions returned, for the length of a message
    void *directory         # penstock.convert.directory.Directory: symbols and topics of instruments
    # the state and the numbering
    State *state
    uint64_t source_sequence
    uint64_t message_sequence # of the next output
    uint8_t origin[32]      # what every ORIGIN has in common
    # where outputs go; before each source message there is room for all it can give
    uint8_t *payloads
    uint64_t payloads_used
    uint8_t *record         # of the output begun last
    MessageView *rows
    uint64_t row_count
    const TopicPlace *topics # of each instrument, topic_kinds of them; the first ones are those of no instrument
    uint32_t topic_kinds
    uint32_t instruments_known # of how many `topics` tells
    Text forwarded_topics   # what is left of the room for topics that messages bring themselves
    uint64_t forwarded_at   # its place within topic_data
    uint64_t faults[32]
    uint64_t emitted[256]
    uint8_t is_unwanted[256] # outputs that are only numbered
