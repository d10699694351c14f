"""Bounds that belong to the formats themselves, so both ends must agree on them.

Bounds of one component (buffers, queues, retries) are in that package's config.py and can be configured.
"""

TOPIC_SIZE_MAX = 255
"""Bytes of a topic in UTF-8."""

TOPIC_DEPTH_MAX = 16
"""Levels of a topic."""

PACKET_SIZE_MAX = 65_507
"""Bytes of a packet: what one IPv4 UDP datagram can carry."""

EPOCH_MAX = 2**32 - 1
"""Starts of a publisher with one id."""

PACKET_SIZE_DEFAULT = 1_472
"""Bytes of a packet that cross an Ethernet of MTU 1500 without IP fragmentation."""

MESSAGE_SIZE_MAX = 16 * 1024 * 1024
"""Bytes of a message's content after reassembly."""

RECORD_SIZE_MAX = 32_768
"""Bytes of one record of a message model."""

FIELD_COUNT_MAX = 512
"""Fields of one message model, repeated ones counted each."""

DOCUMENT_SIZE_MAX = 1024 * 1024
"""Bytes of a configuration or model document."""

MODEL_IN_BAND_SIZE_MAX = 64 * 1024
"""Bytes of a model's document that travels in a stream: whoever receives it has to read it, from anybody."""

JOURNAL_PAYLOAD_SIZE_MAX = MESSAGE_SIZE_MAX
"""Bytes of a journal record's payload."""
