"""Topics of the plant's own messages, which come between an application's and are in nobody's grants."""

OWN_PREFIX = "penstock."
"""What begins so is the plant's: no contributor may send it."""

DISCONTINUITY_TOPIC = "penstock.discontinuity"
"""Of the message that says where a source stream could not go on seamlessly; every subscriber gets it."""

MODEL_TOPIC = "penstock.model"
"""Of a message model in band: the content is its TOML document. It comes from no source, so it has no ORIGIN."""

SESSION_TOPIC = "penstock.session"
"""Of a message in a distribution tree that says that a session of a source stream began or ended: a SessionEvent as
JSON, in order with the messages of the feed that the root publishes."""
