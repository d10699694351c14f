"""A stream opened by a client with a token of its administration server is adopted, or the token is returned."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.base.errors import UnreachableError
from penstock.capture.live.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.context import ClientContext
from penstock.model import MessageModel
from penstock.net.guard import Guard
from penstock.security.core.brokering import Brokered
from penstock.security.live.client import AdminClient


class Admin:
    credentials = SimpleNamespace(client="app")

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def subscribe(self, topics: tuple[str, ...], *, send: tuple[str, ...]) -> Brokered:
        self.calls.append(("subscribe", topics, send))
        return Brokered(
            subscription_id="7", token="t", expires_ns=0, grants=[], streams=[], generation=1, events_after=0
        )

    def cancel(self, subscription_id: str) -> None:
        self.calls.append(("cancel", subscription_id))


def no_models(model_id: int, version: int) -> MessageModel:
    raise AssertionError("nobody asks for a model")


def context_of(admin: Admin, adopted: list[Any]) -> ClientContext:
    client: Any = None
    return ClientContext(
        cast(AdminClient, admin),
        Guard(),
        ClientConfig(),
        Models(no_models),
        client,
        lambda brokered, made: adopted.append((brokered.token, made)),
    )


def test_an_opened_client_is_adopted() -> None:
    admin, adopted = Admin(), []
    assert context_of(admin, adopted).open(("a",), lambda brokered: brokered.token * 2, send=("b",)) == "tt"
    assert adopted == [("t", "tt")]
    assert admin.calls == [("subscribe", ("a",), ("b",))]


def test_a_token_is_released_if_the_open_fails() -> None:
    admin, adopted = Admin(), []

    def failing(brokered: Brokered) -> None:
        raise UnreachableError("nobody there")

    with pytest.raises(UnreachableError):
        context_of(admin, adopted).open(("a",), failing)
    assert adopted == []
    assert admin.calls[-1] == ("cancel", "7")


def test_each_party_has_its_own_name() -> None:
    context = context_of(Admin(), [])
    first, second = context.new_party(), context.new_party()
    assert first != second
    assert first.startswith("app-")
