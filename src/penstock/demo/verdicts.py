"""Whether the demo's subscribers got everything, and whether the machine was too slow for its rate."""

from penstock.demo.layout import FILTER
from penstock.demo.plant import DemoPlant, Subscriber

RATE_KEPT = 0.9
"""Share of the wanted messages below which the exchange was too slow."""


def lost(subscriber: Subscriber) -> int:
    return subscriber.report.lost if subscriber.report else 0


def has_all(plant: DemoPlant, subscriber: Subscriber) -> bool:
    """Whether nothing was lost, or after the death of the filter module nothing in silence."""
    expected, missed = plant.expected(subscriber), lost(subscriber)
    killed = {kill.node for kill in plant.kills} | plant.running.ordered
    if subscriber.is_filtered and FILTER in killed:
        return expected is None or 0 <= expected - subscriber.messages <= missed  # nothing is lost in silence
    return missed == 0 and expected in (None, subscriber.messages)


def is_complete(plant: DemoPlant) -> bool:
    """Every subscriber has everything, and so has the archive."""
    archived = plant.archiving.result if plant.archiving is not None else None
    return (
        all(has_all(plant, each) for each in plant.subscribers)
        and all(each.has_all(plant.published) for each in plant.consumers)
        and (plant.bookings is None or plant.bookings.has_all)
        and (plant.archiving is None or (archived is not None and archived.messages == plant.made))
    )


def is_exchange_slow(plant: DemoPlant, ran_seconds: float) -> bool:
    return plant.exchange.sent < RATE_KEPT * plant.options.rate * ran_seconds


def rate_to_try(plant: DemoPlant, *, is_slow: bool) -> int | None:
    """A lower rate, if the exchange or whoever reads was too slow for the present one. Of losses after something was
    killed nobody can tell."""
    if plant.kills or plant.running.ordered or plant.faults:
        return None
    behind = not all(has_all(plant, each) for each in plant.subscribers)
    behind = behind or not all(each.has_all(plant.published) for each in plant.consumers)
    if not is_slow and not behind:
        return None
    shares = [each.messages / max(each.messages + lost(each), 1) for each in plant.subscribers]
    return lower_rate(plant.options.rate, min(shares))


def lower_rate(rate: float, share: float) -> int:
    """Half of what got through of a rate, as a round number."""
    wanted = max(int(rate * share / 2), 1)
    unit: int = 10 ** (len(str(wanted)) - 1)
    return wanted // unit * unit
