cdef class UnreadMessage:
    cdef public str topic
    cdef public object seq
    cdef public object source
    cdef public int model_id
    cdef public int model_version
    cdef public object payload
