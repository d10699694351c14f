# All names are for compiled callers; see _values.pxd.
