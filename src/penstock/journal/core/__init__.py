"""State machines of the journal without I/O: group commit, recovery, segment format."""
