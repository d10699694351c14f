"""The interest table when memory allocation fails in the middle of a match."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import itertools, resource
import numpy
from penstock.topics import InterestTable

table = InterestTable(seed=bytes(16))
for levels in itertools.product("a*", repeat=11):
    table.add(".".join(levels) + ".>", 1)
topics = [("a." * 12 + f"x{number}.y").encode() for number in range(128)]
sizes = numpy.array([len(topic) for topic in topics], dtype=numpy.uint16)
offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 2 * 1024 * 1024, resource.RLIM_INFINITY))
try:
    table.match_batch(b"".join(topics), offsets, sizes)
except MemoryError:
    print("memory ran out")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
bounds, found = table.match_batch(b"".join(topics), offsets, sizes)
print(len(found))
"""


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer aborts when memory runs out")
def test_an_aborted_match_is_not_cached() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines() == ["memory ran out", "128"], result.stderr
