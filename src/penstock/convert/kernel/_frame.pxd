"""The frame of a converter: registers for the current message, and the memory for outputs."""

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
    int32_t instrument      # -1: no instrument
    uint16_t index          # of the next output within the source message
    # the plan
    const Map *maps
    const Output *outputs
    void *functions         # the Program's tuple
    void *kept              # a list that keeps function results alive for the duration of a message
    void *directory         # penstock.convert.directory.Directory: symbols and topics of instruments
    # the state and the numbering
    State *state
    uint64_t source_sequence
    uint64_t message_sequence # of the next output
    uint8_t origin[32]      # the common part of all ORIGIN extensions
    # memory for outputs; before each source message there is room for its largest result
    uint8_t *payloads
    uint64_t payloads_used
    uint8_t *record         # of the current output
    MessageView *rows
    uint64_t row_count
    const TopicPlace *topics # topics of each instrument, topic_kinds of them; the first ones are for no instrument
    uint32_t topic_kinds
    uint32_t instruments_known # number of instruments in `topics`
    Text forwarded_topics   # remaining room for topics carried by messages
    uint64_t forwarded_at   # its offset within topic_data
    uint64_t faults[32]
    uint64_t emitted[256]
    uint8_t is_unwanted[256] # outputs that are only numbered
