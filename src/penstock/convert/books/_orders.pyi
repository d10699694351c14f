# All names are for compiled callers; see _orders.pxd.
