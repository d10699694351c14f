"""What a filter module decides, without I/O: access, interests, consumers, forwarding, repairs."""
