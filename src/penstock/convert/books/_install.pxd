from penstock.convert.books._units cimport State

cdef int image_install(State *state, object chunks) except -1
