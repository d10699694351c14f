# Everything in it is for compiled callers; _book.pxd declares it.
