# All names are for compiled callers; see _book.pxd.
