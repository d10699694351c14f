# Everything in it is for compiled callers; _emit.pxd declares it.
