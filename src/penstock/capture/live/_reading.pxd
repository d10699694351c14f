from penstock.model._message cimport RecordMaker
from penstock.wire._messages cimport MessageBatch
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
    cdef int use_kind(self, int kind) except -1
