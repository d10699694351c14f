"""Packets of a tree's streams, for tests of its kernel."""

from penstock.tree.core.kernel._frame import encode_block
from penstock.wire import Packer, encode_extensions

TREE_ID = 0x7E57_0123_4567_89AB


def packet(
    sequence: int,
    topic: str = "md.a",
    payload: bytes = b"payload",
    *,
    stream: int = 1,
    term: int = 1,
    tree_id: int = TREE_ID,
    model: tuple[int, int] = (0, 0),
) -> bytes:
    packer = Packer(tree_id, stream, term, first_sequence=sequence, packet_size_max=65_504)
    packer.add(topic, payload, model_id=model[0], model_version=model[1], extensions=encode_extensions({}))
    made = packer.flush()
    assert made is not None
    return made


def block(*packets: bytes, leg: int = 0) -> bytes:
    return encode_block(b"".join(packets), leg=leg)
