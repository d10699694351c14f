"""Decoders by type, requested by many threads at once."""

import subprocess
import sys

import msgspec
import pytest

from penstock.base.decoding import json_decoder, msgpack_decoder
from waiting import PATIENCE_SECONDS

CROWD = """
import sys, threading
import msgspec
from penstock.base.decoding import json_decoder
sys.setswitchinterval(1e-6)
DATA = msgspec.json.encode({side: {f"f{i}": {"v": i} for i in range(20)} for side in "xy"})
for _ in range(500):
    leaves = [msgspec.defstruct(f"Leaf{i}", [("v", int)]) for i in range(20)]
    inner = msgspec.defstruct("Inner", [(f"f{i}", leaf) for i, leaf in enumerate(leaves)])
    kinds = [msgspec.defstruct("Outer", [(side, inner)]) for side in "xy"]
    barrier = threading.Barrier(2)
    def decode(kind):
        barrier.wait()
        json_decoder(kind).decode(DATA)
    threads = [threading.Thread(target=decode, args=[kind]) for kind in kinds]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


class Known(msgspec.Struct):
    name: str


def test_a_decoder_is_created_once() -> None:
    assert json_decoder(Known) is json_decoder(Known)
    assert json_decoder(Known).decode(b'{"name": "a"}') == Known("a")
    assert msgpack_decoder(Known).decode(msgspec.msgpack.encode(Known("b"))) == Known("b")
    with pytest.raises(msgspec.ValidationError):
        json_decoder(Known).decode(b"{}")


def test_threads_that_decode_nested_types_for_the_first_time_are_safe() -> None:
    """Without the lock this crashes with a segmentation fault within a few hundred rounds."""
    done = subprocess.run([sys.executable, "-c", CROWD], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
