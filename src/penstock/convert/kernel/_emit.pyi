# All names are for compiled callers; see _emit.pxd.
