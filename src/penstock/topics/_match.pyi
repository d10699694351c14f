# Nothing here is for Python: _table.pyx cimports it.
