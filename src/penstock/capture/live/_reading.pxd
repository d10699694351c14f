from libc.stdint cimport uint8_t

from penstock.model._message cimport RecordMaker
from penstock.wire._messages cimport MessageBatch
from penstock.wire._packet_run cimport PacketRun
from penstock.wire._topic_cache cimport TopicCache


cdef class BatchReader:
    cdef object _models
    cdef object _read_one
    cdef TopicCache _topics
    cdef int _only_id         # of the model to read; 0: any
    cdef readonly unsigned long long others
    cdef dict _makers         # by model id and version; None: messages to read one by one
    cdef object _generation   # of the models, when the makers were found
    cdef int _kind            # of _maker, the last one used; -1: none
    cdef RecordMaker _maker

    cpdef list read(self, MessageBatch batch)
    cpdef list read_run(self, PacketRun run, str apart)
    cdef int check_generation(self) except -1
    cdef str topic_of(self, const uint8_t *topic, Py_ssize_t size)
    cdef int use_kind(self, int kind) except -1
