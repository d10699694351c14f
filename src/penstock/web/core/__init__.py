"""What the console shows and who may see it, without I/O."""
