"""Accuracy of the classes' shares of an output that is too small for all updates."""

from collections.abc import Iterator

from penstock.base.clock import NS_PER_MS, SystemRandomness
from penstock.bench.harness import Result, result
from penstock.engine import DistributionEngine, EngineConfig, SessionBuffer
from penstock.engine.config import Weights
from penstock.engine.control import ClassName
from penstock.engine.core.events import Attach, Sinks, Subscribe
from penstock.model import shipped

WEIGHTS = Weights(critical=8, adaptive=4, metered=2)
CLASSES: tuple[ClassName, ...] = ("critical", "adaptive", "metered")
ITEMS = 100
CONSUMERS = 4
TURNS = 2_000
BUDGET_BYTES = 20_000
BUFFER_BYTES = 1 << 20
MODEL = shipped("quote")
CONDITIONS = (
    f"{CONSUMERS} consumers of each class, {ITEMS} items, weights {WEIGHTS.critical}:{WEIGHTS.adaptive}:"
    f"{WEIGHTS.metered}; {TURNS} turns with {ITEMS} updates per class, about 80 kB of output each, of which "
    f"{BUDGET_BYTES} bytes are sent; bytes of each class from the consumers' records"
)


def run() -> Iterator[Result]:
    shares = _shares()
    weights = [getattr(WEIGHTS, name) for name in CLASSES]
    expected = [weight / sum(weights) for weight in weights]
    error = max(abs(share - wanted) / wanted for share, wanted in zip(shares, expected, strict=True))
    told = ", ".join(f"{name} {share:.4f}" for name, share in zip(CLASSES, shares, strict=True))
    yield result(
        "engine",
        "wdrr_share_error",
        error,
        "relative",
        against="the exact shares of the weights",
        against_value=1,
        conditions=f"{CONDITIONS}; shares: {told}; the greatest deviation, relative to the exact share",
    )


def _shares() -> list[float]:
    """Return the shares of the written bytes by class."""
    config = EngineConfig(classes=CLASSES, budget_bytes=0, weights=WEIGHTS)
    engine = DistributionEngine(config, SystemRandomness(), models=[MODEL])
    buffers = []
    for place in range(CONSUMERS * len(CLASSES)):
        cls = CLASSES[place % len(CLASSES)]
        buffers.append(SessionBuffer(BUFFER_BYTES))
        engine.handle(Attach(place, f"{cls}-{place}", Sinks(buffer=buffers[-1])), 0)
        engine.handle(Subscribe(place, 1, [f"{cls}.*"], cls, per_second=1_000), 0)
    record, now_ns = bytes(MODEL.record_size), NS_PER_MS
    for _ in range(TURNS):
        now_ns += 2 * NS_PER_MS
        for item in range(ITEMS):
            for cls in CLASSES:
                engine.publish(f"{cls}.{item}".encode(), MODEL, record, now_ns)
        engine.serve(now_ns, BUDGET_BYTES)
        for buffer in buffers:
            buffer.clear()
    sent = [sum(record.classes[cls].bytes for record in engine.records()) for cls in CLASSES]
    return [each / sum(sent) for each in sent]
