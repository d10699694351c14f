"""Reserved topics: the plant's own messages in the streams of applications; no grant includes them."""

RESERVED_PREFIX = "penstock."
"""The prefix of reserved topics; contributors may not send on them."""

DISCONTINUITY_TOPIC = "penstock.discontinuity"
"""Announces a discontinuity of a source stream; delivered to every subscriber."""

MODEL_TOPIC = "penstock.model"
"""A message model in band: the payload is its TOML document. It has no source, and so no ORIGIN."""

SESSION_TOPIC = "penstock.session"
"""Announces in a distribution tree that a session of a source stream began or ended: a SessionEvent as JSON, in
order with the messages of the feed that the root publishes."""
