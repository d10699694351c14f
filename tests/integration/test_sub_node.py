"""`penstock sub` with a distribution node."""

import json

import pytest

from integration.command_kit import running
from node_stand_in import StandInNode, quote
from penstock.engine.control import Subscribe
from penstock.engine.core.kernel._event import EventKind, ReceiptCause
from waiting import wait_until

offloads = pytest.mark.parametrize("offload", [(), ("--offload",)], ids=["here", "offload"])


@offloads
def test_messages_and_what_was_missed_are_shown(offload: tuple[str, ...]) -> None:
    with StandInNode() as node, running("sub", "--node", node.place, "--json", *offload, "md.>") as command:
        wait_until(lambda: node.said(Subscribe), "the subscription")
        node.publish("md.A", quote(1.5))
        node.write(node.receipt(2, 9, int(ReceiptCause.SLOW)))
        node.publish("md.A", quote(2.5))
        wait_until(lambda: command.out.count("\n") == 3, "three lines")
        assert command.interrupt() == 0
        first, missed, second = map(json.loads, command.out.splitlines())
        assert (first["topic"], first["seq"], first["event"]) == ("md.A", 1, "update")
        assert first["fields"]["bid_price"] == 1.5
        assert missed == {"missed": {"topic": "", "first": 2, "last": 9, "cause": "slow"}}
        assert second["fields"]["bid_price"] == 2.5
        assert "2 messages" in command.err


@offloads
def test_records_are_shown_as_they_change(offload: tuple[str, ...]) -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1))
        with running("sub", "--node", node.place, "--records", "--count", "2", *offload, "md.>") as command:
            command.wait_for_output("bid_price=1.0")
            node.publish("md.A", quote(2))
            assert command.end() == 0
            assert [line.split()[0] for line in command.out.splitlines()] == ["md.A", "md.A"]
            assert "2 reads" in command.err


def test_a_rate_is_asked_for(tmp_path: object) -> None:
    with StandInNode() as node:
        node.publish("md.A", quote(1))
        with running("sub", "--node", node.place, "--metered", "4", "--count", "1", "md.>") as command:
            assert command.end() == 0
            assert (node.said(Subscribe)[0].cls, node.said(Subscribe)[0].per_second) == ("metered", 4.0)
            assert "md.A #1 quote" in command.out


def test_what_does_not_go_together_is_refused() -> None:
    with running("sub", "--records", "--where", "bid_price > 1", "md.>") as command:
        assert command.end() != 0
        assert "--where is for messages" in command.err


def test_hostile_topics_harm_no_terminal() -> None:
    with StandInNode() as node, running("sub", "--node", node.place, "--count", "1", "md.>") as command:
        wait_until(lambda: node.said(Subscribe), "the subscription")
        node.items["md.A"], node.models["md.A"] = 0, quote(1).model
        node.records["md.A"] = (1, bytes(quote(1)))
        defined = node.define("md.A").replace(b"md.A", b"\x1b[2J")
        node.write(defined + node.event("md.A", EventKind.UPDATE))
        assert command.end() == 0
        assert "\x1b" not in command.out
