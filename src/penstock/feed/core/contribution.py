"""Contributions as a source stream: a message from a subscriber is a source message like any other.

    0  model id  u16    2  model version  u16    4  topic size  u16    6  zero  u16    8  topic, then the payload

All numbers are little-endian. The converter table `contribution` reads the format and passes the content on
unchanged.
"""

import struct

from penstock.middleware.unicast import Contribution
from penstock.topics import check_topic

TABLE = "contribution"

_HEADER = struct.Struct("<HHHxx")


def encode_contribution(message: Contribution) -> bytes:
    topic = check_topic(message.topic)
    return _HEADER.pack(message.model_id, message.model_version, len(topic)) + topic + message.payload
