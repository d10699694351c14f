"""Reserved topics: the plant's own messages in the streams of applications; no grant includes them."""

RESERVED_PREFIX = "penstock."
"""The prefix of reserved topics; contributors may not send on them."""

DISCONTINUITY_TOPIC = "penstock.discontinuity"
"""Of the message that says where a source stream could not go on seamlessly; every subscriber gets it."""

MODEL_TOPIC = "penstock.model"
"""Of a message model in band: the content is its TOML document. It comes from no source, so it has no ORIGIN."""

SESSION_TOPIC = "penstock.session"
"""Of a message in a distribution tree that says that a session of a source stream began or ended: a SessionEvent as
JSON, in order with the messages of the feed that the root publishes."""
