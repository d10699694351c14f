# Everything in it is for compiled callers; _values.pxd declares it.
