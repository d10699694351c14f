# Everything in it is for compiled callers; _steps.pxd declares it.
