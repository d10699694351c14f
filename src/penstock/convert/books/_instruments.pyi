# Everything in it is for compiled callers; _instruments.pxd declares it.
