# Everything in it is for compiled callers; _orders.pxd declares it.
