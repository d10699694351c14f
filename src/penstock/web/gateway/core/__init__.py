"""What a browser asks, what it is answered, and what waits for it, without I/O."""
