"""What clients ask, as a router's core is told it; and what the core answers, as clients are told it."""

from penstock.assured.core.router import events
from penstock.assured.wire.control import (
    AlterEndpoint,
    Begin,
    CloseFlow,
    ClosePublisher,
    Commit,
    CreateEndpoint,
    DeleteEndpoint,
    Done,
    EmptyEndpoint,
    Ended,
    EndpointNamed,
    FlowActive,
    FlowEnded,
    FlowOpened,
    Message,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
    Refused,
    Rollback,
)
from penstock.base.errors import RemoteProtocolError


def event_of(link: int, message: Message) -> events.Event:
    match message:
        case OpenPublisher(number, publisher):
            return events.OpenPublisher(link, number, publisher)
        case ClosePublisher(number, handle):
            return events.ClosePublisher(link, number, handle)
        case OpenFlow(number, endpoint, credit):
            return events.OpenFlow(link, number, endpoint, credit)
        case CloseFlow(number, handle, read):
            return events.CloseFlow(link, number, handle, read)
        case Begin(number, handle, transaction):
            return events.Begin(link, number, handle, transaction)
        case Commit(number, handle, transaction):
            return events.Commit(link, number, handle, transaction)
        case Rollback(number, handle, transaction):
            return events.Rollback(link, number, handle, transaction)
        case CreateEndpoint(number, endpoint, from_id, from_time_ns):
            beginning = events.Beginning(from_id, from_time_ns) if from_id or from_time_ns else None
            return events.CreateEndpoint(link, number, endpoint, beginning)
        case AlterEndpoint(number, endpoint):
            return events.AlterEndpoint(link, number, endpoint)
        case DeleteEndpoint(number, name, is_forced):
            return events.DeleteEndpoint(link, number, name, is_forced)
        case EmptyEndpoint(number, name):
            return events.EmptyEndpoint(link, number, name)
    raise RemoteProtocolError(f"a {type(message).__name__}, which no client says")


def news_of(instruction: events.EndFlow | events.FlowActive | events.NameEndpoint) -> Message:
    """What a client is told without having asked."""
    match instruction:
        case events.EndFlow(_, handle, code, what):
            return FlowEnded(handle, code, what[:256])
        case events.FlowActive(_, handle):
            return FlowActive(handle)
        case events.NameEndpoint(_, number, endpoint):
            return EndpointNamed(number, endpoint.name, endpoint.messages_max, endpoint.bytes_max)


def message_of(number: int, answer: object, other_place: str = "") -> Message:
    """`other_place` is where clients find the other router of the pair."""
    match answer:
        case events.PublisherOpened(handle, highest, transaction):
            return PublisherOpened(number, handle, highest, transaction)
        case events.FlowOpened(handle, is_active):
            return FlowOpened(number, handle, is_active)
        case events.Ended(outcome, treatment, why):
            return Ended(number, outcome, treatment, why[:256])
        case events.Refused(code, what, hint):
            return Refused(code, what[:256], number, hint[:256], other_place if code == "not_active" else "")
        case _:
            return Done(number)
