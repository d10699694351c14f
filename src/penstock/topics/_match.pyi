# Not for Python: _table.pyx cimports these names.
