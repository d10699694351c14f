"""What a filter module does: messages judged and passed on."""

from collections.abc import Iterator

from penstock.bench import filter_rate
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from filter_rate.run()
