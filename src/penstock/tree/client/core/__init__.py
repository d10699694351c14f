"""The cores of a subscriber and of a publisher: a link to an agent, kept and replaced. They do no I/O."""
