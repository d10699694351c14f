"""What a node decides, without I/O."""
