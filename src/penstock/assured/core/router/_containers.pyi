# Nothing here is for Python: other kernels of the package cimport it.
