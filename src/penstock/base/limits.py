"""Limits that are part of the wire and file formats, so that all nodes must agree on them.

Limits of one component (buffers, queues, retries) are in the config.py of that package and are configurable.
"""

TOPIC_SIZE_MAX = 255
"""Maximum size of a topic in bytes of UTF-8."""

TOPIC_DEPTH_MAX = 16
"""Maximum number of levels of a topic."""

PACKET_SIZE_MAX = 65_507
"""Maximum size of a packet in bytes: the capacity of an IPv4 UDP datagram."""

EPOCH_MAX = 2**32 - 1
"""Maximum number of starts of a publisher with one id."""

PACKET_SIZE_DEFAULT = 1_472
"""Default size of a packet in bytes, which crosses an Ethernet of MTU 1500 without IP fragmentation."""

MESSAGE_SIZE_MAX = 16 * 1024 * 1024
"""Maximum size of a message's content in bytes, after reassembly."""

RECORD_SIZE_MAX = 32_768
"""Maximum size of a record of a message model in bytes."""

FIELD_COUNT_MAX = 512
"""Maximum number of fields of a message model; every repetition counts."""

DOCUMENT_SIZE_MAX = 1024 * 1024
"""Maximum size of a configuration or model document in bytes."""

MODEL_IN_BAND_SIZE_MAX = 64 * 1024
"""Maximum size of a model document in a stream, in bytes; small, because receivers must parse documents of untrusted
senders.
"""

JOURNAL_PAYLOAD_SIZE_MAX = MESSAGE_SIZE_MAX
"""Maximum size of a journal record's payload in bytes."""
