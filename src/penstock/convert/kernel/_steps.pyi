# All names are for compiled callers; see _steps.pxd.
