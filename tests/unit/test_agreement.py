"""The message digests by which two publishers are compared, against a reference in plain Python."""

import numpy as np
import pytest

from penstock.base.errors import LocalProtocolError
from penstock.capture.core._digest import digest_rows
from penstock.capture.core.rows import PacketRows
from penstock.wire import Extension, Origin, Packer, encode_extensions, encode_origin
from unit.rows_kit import batch_of

NOWHERE = 0xFFFF_FFFF
MASK = 2**64 - 1


def digest(seq: int, model: int, topic: bytes, content: bytes, left_out: int = NOWHERE) -> int:
    """The digest as docs/reference/protocol/archive.md defines it."""
    if left_out != NOWHERE:
        content = content[:left_out] + bytes(8) + content[left_out + 8 :]
    words = [seq, model]
    for part in (topic, content):
        padded = part + bytes(-len(part) % 8)
        words += [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
    made = 0
    for word in words:
        made = (made ^ word) * 0x9E3779B97F4A7C15 & MASK
        made ^= made >> 29
    return (made ^ made >> 32) & (2**48 - 1)


def test_digests_equal_those_of_the_documented_definition() -> None:
    packer = Packer(1, 0xEF010101, 1)
    messages = [
        (number, number % 3, f"md.{'x' * number}".encode(), bytes(range(number, number + 2 * number)))
        for number in range(1, 30)
    ]
    packets = []
    for seq, model, topic, content in messages:
        origin = encode_extensions({Extension.ORIGIN: encode_origin(Origin(1, 1 << 14, 0, 1, seq, seq))})
        packets += packer.add(topic, content, model_id=model, model_version=1, extensions=origin)
    rest = packer.flush()
    assert rest is not None
    rows = PacketRows().take(batch_of([*packets, rest]))
    assert len(rows) == len(messages)
    left_out = np.array([NOWHERE, 8], np.uint32)
    found = digest_rows(rows.topic_data, rows.payloads, rows.rows, rows.origins, left_out)
    assert found.tolist() == [
        digest(*message, left_out=8 if message[1] == 1 and len(message[3]) >= 16 else NOWHERE) for message in messages
    ]
    with pytest.raises(LocalProtocolError):
        digest_rows(rows.topic_data, rows.payloads[:10], rows.rows, rows.origins, left_out)
    with pytest.raises(LocalProtocolError):
        digest_rows(rows.topic_data, rows.payloads, rows.rows, rows.origins[:1], left_out)
