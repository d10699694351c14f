"""The state machines of the journal: group commit, recovery, the format of segments. They do no I/O."""
