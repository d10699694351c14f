"""The decisions of a filter module, without I/O: access, interests, consumers, forwarding, repairs."""
