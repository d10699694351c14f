"""Feed adapters: conversion, and the latency from a datagram's arrival to the sending of its messages."""

from collections.abc import Iterator

from penstock.bench import adapter_latency, conversion
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from conversion.run()
    yield from adapter_latency.run()
