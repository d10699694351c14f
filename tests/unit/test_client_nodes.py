"""Conditions on the data of a distribution node: impossible conditions are refused without a request."""

from typing import Any

import pytest

from penstock.base.errors import FilterExpressionError
from penstock.capture.live.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.context import ClientContext
from penstock.client.nodes import NodeConsumers
from penstock.model import MessageModel, shipped, shipped_names
from penstock.net.guard import Guard
from penstock.security.core.brokering import Brokered, BrokeredStream, ModelReference


def known(model_id: int, version: int) -> MessageModel:
    """An administration server's answer."""
    return next(model for model in map(shipped, shipped_names()) if model.id == model_id)


def brokered(*models: str) -> Brokered:
    stream = BrokeredStream(
        feed="us",
        source_streams=[],
        topics=["md.us.>"],
        delay_s=0,
        sealed=False,
        keys=[],
        models=[ModelReference(id=shipped(name).id, version=shipped(name).version) for name in models],
        addresses=[],
    )
    return Brokered(
        subscription_id="1", token="", expires_ns=0, grants=[], streams=[stream], generation=1, events_after=0
    )


@pytest.fixture
def consumers() -> NodeConsumers:
    nothing: Any = None  # the rest is a connection to an administration server
    return NodeConsumers(ClientContext(nothing, Guard(), ClientConfig(), Models(known), nothing, nothing))


@pytest.mark.parametrize("where", ["bid_price > 100", "symbol = 'IBM' and ask_size >= 10"])
def test_a_condition_on_a_field_of_a_feeds_model_is_accepted(consumers: NodeConsumers, where: str) -> None:
    consumers._check_condition(where, brokered("trade", "quote"))


def test_a_condition_on_a_field_of_a_derived_view_is_accepted(consumers: NodeConsumers) -> None:
    """Views are items of a node that no feed declares."""
    field = next(
        field.name
        for field in shipped("day_statistics").fields
        if field.name not in shipped("quote").fields_by_name and field.type_text.startswith(("int", "price", "uint"))
    )
    consumers._check_condition(f"{field} > 0", brokered("quote"))


@pytest.mark.parametrize("where", ["no_such_field > 1", "bid_price >", "bid_price like 5"])
def test_a_condition_on_an_unknown_field_is_refused(consumers: NodeConsumers, where: str) -> None:
    with pytest.raises(FilterExpressionError):
        consumers._check_condition(where, brokered("quote", "trade"))
