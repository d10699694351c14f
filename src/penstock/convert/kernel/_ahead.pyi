# All names are for compiled callers; see _ahead.pxd.
