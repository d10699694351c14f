"""Consumers of a stand-in node, in this process or offloaded: the same tests run with both."""

from collections.abc import Callable
from typing import Any

import pytest

from node_stand_in import StandInNode
from penstock.engine.client.consumer import ConsumerRequest
from penstock.engine.client.event_reader import EventReader
from penstock.engine.client.messages import NodeMessages
from penstock.engine.client.offload import offloaded_events, offloaded_records
from penstock.engine.client.record_reader import RecordsReader
from penstock.engine.client.records import Records
from penstock.model import Message

both = pytest.mark.parametrize("is_offloaded", [False, True], ids=["here", "offload"])


def request_for(node: StandInNode, **options: Any) -> ConsumerRequest:
    return ConsumerRequest(**({"host": "127.0.0.1", "port": node.port, "topics": ("md.>",)} | options))


def messages_of(node: StandInNode, is_offloaded: bool, **options: Any) -> NodeMessages:
    request = request_for(node, **({"cls": "critical"} | options))
    source = offloaded_events(request) if is_offloaded else EventReader(request)
    return NodeMessages(source, request.topics, is_converting=request.is_converting)


def records_of(node: StandInNode, is_offloaded: bool, **options: Any) -> Records:
    request = request_for(node, **({"cls": "adaptive"} | options))
    return Records(offloaded_records(request) if is_offloaded else RecordsReader(request))


def take(next_one: Callable[[float], Any], count: int) -> list[Message]:
    """Return this number of messages, each received within a generous bound."""
    found = []
    for _ in range(count):
        message = next_one(30.0)
        assert message is not None, f"{len(found)} messages came, not {count}"
        found.append(message)
    return found
