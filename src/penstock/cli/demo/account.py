"""The final output of the demo: a summary of one screen, and the details for `--report`."""

import os

from penstock.base.clock import NS_PER_MS, NS_PER_US
from penstock.base.words import counted
from penstock.demo.consumers import difference
from penstock.demo.layout import TOPICS
from penstock.demo.plant import DemoPlant, Subscriber
from penstock.demo.routing import ROUTERS
from penstock.demo.verdicts import has_all, is_exchange_slow, lost, rate_to_try

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


def details(plant: DemoPlant, ran_seconds: float) -> list[str]:
    """Describe every process of the whole plant: the report, for which the summary has no room."""
    sent = plant.exchange.sent
    lines = [
        (
            f"In {ran_seconds:.1f} s the exchange sent {sent:,} messages on two lines; "
            f"the adapters made {plant.made:,} application messages of them."
        )
    ]
    lines += overload(plant, ran_seconds)
    for each in plant.subscribers:
        lines += account(plant, each)
    lines += filtered(plant)
    lines.append("Through the ticker plant, each at its own pace:")
    lines += [f"  {each.line(plant.published, ran_seconds)}" for each in plant.consumers]
    lines += _tree_lines(plant)
    if plant.bookings is not None:
        lines += plant.bookings.lines()
    for kill in plant.kills:
        lines.append(_aftermath(plant, kill.node))
        for each in plant.subscribers:
            at_kill, otherwise = plant.gap_at_kill_ns(each, kill) / NS_PER_MS, plant.gap_otherwise_ns(each) / NS_PER_MS
            lines.append(
                f"  {each.name}: longest gap between two deliveries {at_kill:,.1f} ms around the kill, "
                f"{otherwise:,.1f} ms in an ordinary second"
            )
    lines.append("Latencies are in µs from an adapter's receipt of the source message to the subscriber's Python code.")
    return lines


def _tree_lines(plant: DemoPlant) -> list[str]:
    agents = plant.agents
    root = next((each for each in agents.values() if each.state == "root"), None)
    if root is None:
        return []
    numbered = sum(stream.last for stream in root.streams)
    # from their paths, because at the end some agents have already lost their parents
    below = [f"{each.name} below {each.path[-2]}" for each in agents.values() if len(each.path) > 1]
    return [
        f"Through the tree, {numbered:,} quotes and trades, each numbered once by its root:",
        f"  {', '.join(below)}",
    ]


def _aftermath(plant: DemoPlant, name: str) -> str:
    if name in ROUTERS:
        bookings, starts = plant.bookings, plant.running.nodes[name].starts
        active = f"{bookings.active.name} is active, in epoch {bookings.epoch}" if bookings and bookings.active else ""
        return f"{name} was the active message router and was killed with -9: {starts} starts; {active}."
    if plant.filter is not None and name == plant.filter.name:
        return f"{name} was killed with -9 and started again: {plant.running.nodes[name].starts} starts."
    new = next((node.name for node in plant.running.adapters() if node.name != name), "nobody")
    return f"{name} was the active adapter and was killed with -9; {new} took over."


def machine() -> str:
    """Describe the machine and its load, because both decide what latencies mean."""
    cores = counted(len(os.sched_getaffinity(0)), "core")
    return f"{cores}, load average {os.getloadavg()[0]:.1f}"


def summary(plant: DemoPlant, ran_seconds: float) -> list[str]:
    """Describe the run of the whole plant on one screen."""
    nodes = sum(node.starts > 0 for node in plant.running.nodes.values())
    lines = [
        f"In {ran_seconds:.1f} s the exchange sent {plant.exchange.sent:,} messages; the adapters made {plant.made:,}.",
        f"{nodes} nodes and their consumers share {machine()}: latencies are those of a loaded machine.",
    ]
    lines += overload(plant, ran_seconds)
    for each in plant.subscribers:
        how = "through the filter module" if each.is_filtered else "by multicast, everything"
        p50, p99 = (each.latency.percentile(q) / NS_PER_US for q in (50, 99))
        verdict = "complete" if has_all(plant, each) else "[red]not complete[/red]"
        lines.append(
            f"  {each.name} ({how}): {each.messages:,}, {verdict}, {lost(each):,} lost; "
            f"p50 {p50:,.0f} µs, p99 {p99:,.0f} µs"
        )
    lines += [f"  {each.line(plant.published, ran_seconds)}" for each in plant.consumers]
    if plant.bookings is not None:
        lines.append(f"  {plant.bookings.summary()}")
    lines += [f"  {_aftermath(plant, kill.node)}" for kill in plant.kills]
    return lines
