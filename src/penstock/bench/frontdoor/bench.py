"""The public API between processes: one publish() per message, one `for` loop per message, beside pyzmq and NATS.

A part that fails is reported with the reason, and the next part runs.
"""

from collections.abc import Iterator

from penstock.base.errors import PenstockError
from penstock.bench.frontdoor import assured, client, memory, multicast, node, through_plant, tree
from penstock.bench.harness import Result, unmeasured

PARTS = (multicast, client, node, through_plant, tree, assured, memory)


def run() -> Iterator[Result]:
    for part in PARTS:
        try:
            yield from part.run()
        except (PenstockError, OSError) as error:
            yield unmeasured("frontdoor", part.__name__.rpartition(".")[2], f"the part failed: {error}")
