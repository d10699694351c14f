# Nothing here is for Python: the other kernels of the package cimport it.
