"""Outputs: an ORIGIN extension, a record and a row each, in memory that the converter has made room in."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.convert.kernel._frame cimport Frame, Text, TopicPlace
from penstock.convert.kernel._program cimport (
    FAULT_LENGTH, FAULT_LIMIT, FAULT_NONE, FAULT_TEXT, FORWARDED_SIZE_MAX, Op, Output,
)
from penstock.wire._codec cimport (
    MessageView,
    ORIGIN_INDEX_AT,
    ORIGIN_MESSAGE_SEQUENCE_AT,
    ORIGIN_SIZE,
    ORIGIN_SOURCE_SEQUENCE_AT,
    is_utf8,
    padded,
    store_u16,
    store_u64,
)

from penstock.base import limits

cdef uint64_t topic_size_max = limits.TOPIC_SIZE_MAX


cdef int begin_output(Frame *frame, uint32_t number) noexcept nogil:
    cdef const Output *output = &frame.outputs[number]
    cdef const TopicPlace *topic
    cdef uint8_t *record
    if output.is_about_instrument:
        if <uint32_t>frame.instrument >= frame.instruments_known:
            if not learn_topics(frame):
                return FAULT_LIMIT
        topic = &frame.topics[(frame.instrument + 1) * frame.topic_kinds + output.topic_kind]
    else:
        topic = &frame.topics[output.topic_kind]
    record = begin_row(frame, topic.offset, topic.size, output.record_size)
    memcpy(record, output.blank, output.record_size)
    frame.rows[frame.row_count].model_id = output.model_id
    frame.rows[frame.row_count].model_version = output.model_version
    frame.row_count += 1
    frame.record = record
    frame.emitted[number] += 1
    return FAULT_NONE


cdef uint8_t *pass_over_output(Frame *frame, uint32_t number) noexcept nogil:
    """An output that nobody wants has its number all the same; returns where its record may be written, and be lost."""
    frame.index += 1
    frame.message_sequence += 1
    frame.emitted[number] += 1
    return frame.payloads + frame.payloads_used + ORIGIN_SIZE


cdef inline uint8_t *begin_row(Frame *frame, uint64_t topic_at, uint64_t topic_size, uint32_t size) noexcept nogil:
    """Number the output and say where it is; returns where its record goes."""
    cdef uint8_t *origin = frame.payloads + frame.payloads_used
    cdef MessageView *row = &frame.rows[frame.row_count]
    memcpy(origin, frame.origin, ORIGIN_SIZE)
    store_u16(origin + ORIGIN_INDEX_AT, frame.index)
    store_u64(origin + ORIGIN_SOURCE_SEQUENCE_AT, frame.source_sequence)
    store_u64(origin + ORIGIN_MESSAGE_SEQUENCE_AT, frame.message_sequence)
    row.packet_index = 0
    row.topic_offset = <uint32_t>topic_at
    row.payload_offset = <uint32_t>frame.payloads_used + ORIGIN_SIZE
    row.payload_size = size
    row.extensions_offset = <uint32_t>frame.payloads_used
    row.topic_size = <uint16_t>topic_size
    row.extensions_size = ORIGIN_SIZE
    row.flags = 0
    row.reserved = 0
    frame.payloads_used += ORIGIN_SIZE + padded(size)
    frame.index += 1
    frame.message_sequence += 1
    return origin + ORIGIN_SIZE


cdef bint learn_topics(Frame *frame) noexcept with gil:
    """A new instrument: the directory makes room for its topics and says where."""
    try:
        (<object>frame.directory).learn()
    except MemoryError:
        return False
    return <uint32_t>frame.instrument < frame.instruments_known


cdef int forward(Frame *frame, const Op *op) noexcept nogil:
    cdef const Text *topic = &frame.texts[op.a]
    cdef const Text *payload = &frame.texts[op.d]
    cdef uint8_t *record
    if topic.size == 0 or topic.size > topic_size_max or not is_utf8(topic.at, <uint32_t>topic.size):
        return FAULT_TEXT
    if topic.size > frame.forwarded_topics.size or payload.size > FORWARDED_SIZE_MAX:
        return FAULT_LENGTH
    memcpy(<uint8_t *>frame.forwarded_topics.at, topic.at, topic.size)
    record = begin_row(frame, frame.forwarded_at, topic.size, <uint32_t>payload.size)
    frame.forwarded_topics.at += topic.size
    frame.forwarded_topics.size -= topic.size
    frame.forwarded_at += topic.size
    memset(record, 0, padded(payload.size))
    memcpy(record, payload.at, payload.size)
    frame.rows[frame.row_count].model_id = <uint16_t>frame.registers[op.b]
    frame.rows[frame.row_count].model_version = <uint16_t>frame.registers[op.c]
    frame.row_count += 1
    return FAULT_NONE
