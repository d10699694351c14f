"""The verdict of a demo run: whether the subscribers received everything, and whether the machine was too slow."""

from penstock.demo.layout import FILTER
from penstock.demo.plant import DemoPlant, Subscriber

RATE_KEPT = 0.9
"""Share of the wanted messages below which the exchange was too slow."""


def lost(subscriber: Subscriber) -> int:
    return subscriber.report.lost if subscriber.report else 0


def has_all(plant: DemoPlant, subscriber: Subscriber) -> bool:
    """True if nothing was lost or, after the filter module was killed, every loss was reported."""
    expected, missed = plant.expected(subscriber), lost(subscriber)
    killed = {kill.node for kill in plant.kills} | plant.running.ordered
    if subscriber.is_filtered and FILTER in killed:
        return expected is None or 0 <= expected - subscriber.messages <= missed  # every loss was reported
    return missed == 0 and expected in (None, subscriber.messages)


def is_complete(plant: DemoPlant) -> bool:
    """True if every subscriber and the archive have everything."""
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
    """A lower rate, if the exchange or a subscriber was too slow for the current one. After a kill, the cause of losses
    is unknown."""
    if plant.kills or plant.running.ordered or plant.faults:
        return None
    behind = not all(has_all(plant, each) for each in plant.subscribers)
    behind = behind or not all(each.has_all(plant.published) for each in plant.consumers)
    if not is_slow and not behind:
        return None
    shares = [each.messages / max(each.messages + lost(each), 1) for each in plant.subscribers]
    return lower_rate(plant.options.rate, min(shares))


def lower_rate(rate: float, share: float) -> int:
    """Half of the delivered rate, rounded."""
    wanted = max(int(rate * share / 2), 1)
    unit: int = 10 ** (len(str(wanted)) - 1)
    return wanted // unit * unit
