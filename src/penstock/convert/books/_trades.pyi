# All names are for compiled callers; see _trades.pxd.
