# All names are for compiled callers; see _install.pxd.
