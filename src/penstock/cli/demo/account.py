"""The summary of the demo's messages for each subscriber."""

from penstock.base.clock import NS_PER_US
from penstock.demo.consumers import difference
from penstock.demo.layout import TOPICS
from penstock.demo.plant import DemoPlant, Subscriber
from penstock.demo.verdicts import is_exchange_slow, lost, rate_to_try

PERCENTILES = (50, 99, 99.9)
UNKNOWN = "no subscriber got everything for a comparison"


def account(plant: DemoPlant, subscriber: Subscriber) -> list[str]:
    """Describe the messages of one subscriber."""
    report, latency = subscriber.report, subscriber.latency
    expected = plant.expected(subscriber)
    verdict = "every message, once" if subscriber.topics == TOPICS else "every message it wants, once"
    if expected is None:
        verdict = UNKNOWN
    elif subscriber.messages != expected:
        verdict = f"[red]{difference(expected, subscriber.messages)}[/red]"
    if subscriber.fault:
        verdict = f"[red]until {subscriber.fault}[/red]"
    parts = [f"{subscriber.name}: {subscriber.messages:,} delivered ({verdict})"]
    if report is not None:
        parts.append(f"{report.duplicates:,} copies from the other adapter suppressed")
        parts.append(f"{report.repairs:,} packets repaired")
        parts.append(f"[red]{report.lost:,} lost[/red]" if report.lost else "0 lost")
    measured = "  ".join(f"p{q:g} {latency.percentile(q) / NS_PER_US:,.1f}" for q in PERCENTILES)
    return ["; ".join(parts), f"  latency {measured}  max {latency.maximum / NS_PER_US:,.1f}"]


def filtered(plant: DemoPlant) -> list[str]:
    """Describe the filter module, and compare its subscribers with one that does not use it."""
    module = plant.filtered
    lines = [
        f"The filter module received {module.messages:,} messages from both adapters together:",
        f"  {module.passed:,} copies of them were passed on, {module.unwanted:,} match no interest behind it",
    ]
    behind = [each for each in plant.subscribers if each.is_filtered and not each.fault]
    if (reference := plant.reference) is not None:
        lines += [f"  {each.name} {_compared(plant, each, reference)}" for each in behind]
    return lines


def _compared(plant: DemoPlant, subscriber: Subscriber, reference: Subscriber) -> str:
    if plant.agrees(subscriber):
        return f"with it and {reference.name} without it saw the same messages on the same topics"
    if (expected := plant.expected(subscriber)) is None:
        return f"cannot be compared with {reference.name}, which did not get everything itself"
    missing, told = expected - subscriber.messages, lost(subscriber)
    if 0 < missing <= told:
        return f"did not see {missing:,} messages that {reference.name} saw, and was told that {told:,} may be lost"
    return f"[red]with it and {reference.name} without it saw other messages on the same topics[/red]"


def overload(plant: DemoPlant, ran_seconds: float) -> list[str]:
    """Report whether the machine was too slow for the rate, and suggest a rate."""
    lines = []
    is_slow = is_exchange_slow(plant, ran_seconds)
    if is_slow:
        lines.append(f"[red]The exchange could not keep its rate of {plant.options.rate:,.0f} messages/s.[/red]")
    rate = rate_to_try(plant, is_slow=is_slow)
    if rate is not None:
        lines.append(f"[red]This machine was too slow for this rate: try --rate {rate}[/red]")
    return lines
