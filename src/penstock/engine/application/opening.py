"""The ways in: what an application wants of which node, here or by an offload process."""

from typing import Any

from penstock.base.errors import LocalProtocolError
from penstock.engine.application.consumer import NO_GUARD, ConsumerRequest, Guard, ModelFinder
from penstock.engine.application.finding import AUTO, find_node
from penstock.engine.application.messages import NodeMessages
from penstock.engine.application.offload import offloaded_events, offloaded_records
from penstock.engine.application.reader import EventReader
from penstock.engine.application.records import Records
from penstock.engine.application.records_reader import RecordsReader
from penstock.engine.application.sources import EventSource, RecordSource
from penstock.engine.control import ClassWish
from penstock.topics import Interest


def open_messages(
    node: str = AUTO,
    *topics: str,
    cls: ClassWish = "critical",
    per_second: float = 0.0,
    offload: bool = False,
    models: ModelFinder | None = None,
    guard: Guard = NO_GUARD,
    **options: Any,
) -> NodeMessages:
    """Messages of a node: every update ("critical"), or of each topic no more than `per_second` ("metered").

    `options` are those of ConsumerRequest: name, token, is_converting, wait, timeout_s. With `offload` a process of its
    own does the work.
    """
    request = _request(node, topics, options, cls=cls, per_second=per_second)
    source: EventSource = offloaded_events(request, guard) if offload else EventReader(request, models, guard)
    return NodeMessages(source, topics, is_converting=request.is_converting)


def open_records(
    node: str = AUTO,
    *topics: str,
    offload: bool = False,
    models: ModelFinder | None = None,
    guard: Guard = NO_GUARD,
    **options: Any,
) -> Records:
    """The newest records of a node of this host; `options` and `offload` as of open_messages()."""
    request = _request(node, topics, options, cls="adaptive")
    if request.transport != "local":
        raise LocalProtocolError(
            "records are in shared memory, and the node is on another host", hint="run `penstock mux` on this host"
        )
    source: RecordSource = offloaded_records(request, guard) if offload else RecordsReader(request, models, guard)
    return Records(source)


def _request(node: str, topics: tuple[str, ...], options: dict[str, Any], **more: Any) -> ConsumerRequest:
    if not topics:
        raise LocalProtocolError("a consumer needs topics", hint="'>' is everything")
    for topic in topics:
        Interest.parse(topic)
    host, port = find_node(node)
    return ConsumerRequest(host=host, port=port, topics=topics, **more, **options)
