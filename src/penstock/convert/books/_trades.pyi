# Everything in it is for compiled callers; _trades.pxd declares it.
