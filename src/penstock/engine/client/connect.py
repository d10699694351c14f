"""Connects an application to a node, in its own process or through an offload process."""

from typing import Any

from penstock.base.errors import LocalProtocolError
from penstock.engine.client.consumer import NO_GUARD, ConsumerRequest, ModelFinder
from penstock.engine.client.discovery import AUTO, find_node
from penstock.engine.client.event_reader import EventReader
from penstock.engine.client.messages import NodeMessages, check_rate
from penstock.engine.client.offload import offloaded_events, offloaded_records
from penstock.engine.client.record_reader import RecordsReader
from penstock.engine.client.records import Records
from penstock.engine.client.sources import EventSource, RecordSource
from penstock.engine.control import ClassWish
from penstock.net.guard import Guard
from penstock.topics import Interest


def open_messages(
    node: str = AUTO,
    *topics: str,
    cls: ClassWish = "critical",
    per_second: float = 0.0,
    where: str | None = None,
    convert: bool = False,
    offload: bool = False,
    **options: Any,
) -> NodeMessages:
    """Messages of the node at "host:port", or of this host's node: every update ("critical"), or at most `per_second`
    updates of each topic ("metered").

    `where` is a SQL condition on fields. With `convert`, prices are floats, in arrays too. With `offload` a separate
    process does the work. `options` are the others of ConsumerRequest: name, token, wait, timeout_s.
    """
    request = consumer_request(
        node, topics, cls=cls, per_second=per_second, where=where or "", is_converting=convert, **options
    )
    return NodeMessages(event_source(request, offload=offload), topics, is_converting=convert)


def open_records(
    node: str = AUTO, *topics: str, convert: bool = False, offload: bool = False, **options: Any
) -> Records:
    """The newest records of a node on this host. Parameters are those of open_messages()."""
    request = consumer_request(node, topics, cls="adaptive", is_converting=convert, **options)
    return Records(record_source(request, offload=offload))


def consumer_request(node: str, topics: tuple[str, ...], **options: Any) -> ConsumerRequest:
    """Check the request and find the node."""
    if not topics:
        raise LocalProtocolError("a consumer needs topics", hint="use '>' for all topics")
    for topic in topics:
        Interest.parse(topic)
    check_rate(options.get("per_second", 0.0))
    host, port = find_node(node, options.get("cls", "auto"))
    return ConsumerRequest(host=host, port=port, topics=topics, **options)


def event_source(
    request: ConsumerRequest, *, offload: bool, models: ModelFinder | None = None, guard: Guard = NO_GUARD
) -> EventSource:
    """Attach a reader in this process or in an offload process. `models` finds models that are not shipped."""
    return offloaded_events(request, guard) if offload else EventReader(request, models, guard)


def record_source(
    request: ConsumerRequest, *, offload: bool, models: ModelFinder | None = None, guard: Guard = NO_GUARD
) -> RecordSource:
    """Attach a reader of records in this process or in an offload process."""
    if request.transport != "local":
        raise LocalProtocolError(
            "records are in shared memory, and the node is on another host", hint="run `penstock mux` on this host"
        )
    return offloaded_records(request, guard) if offload else RecordsReader(request, models, guard)
