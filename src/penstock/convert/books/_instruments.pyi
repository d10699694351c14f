# All names are for compiled callers; see _instruments.pxd.
