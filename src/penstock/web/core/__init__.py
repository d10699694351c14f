"""The data that the console shows and the access to it, without I/O."""
