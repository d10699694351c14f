# Everything in it is for compiled callers; _install.pxd declares it.
