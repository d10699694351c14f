# Everything in it is for compiled callers; _ahead.pxd declares it.
