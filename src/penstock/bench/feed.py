"""What a feed adapter does: conversion, and the way from a datagram's arrival to its messages' departure."""

from collections.abc import Iterator

from penstock.bench import adapter_latency, conversion
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from conversion.run()
    yield from adapter_latency.run()
