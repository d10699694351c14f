"""Live widgets follow real subscriptions and records; their state is read without a kernel."""

import subprocess
import sys
from typing import Any

import pytest

import penstock
from admin_kit import credentials
from client_kit import Originated, adapter_on, registered_on
from integration.node_kit import records_of
from node_stand_in import StandInNode, quote
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import ConfigurationError
from penstock.models import Quote
from penstock.net.udp import free_channel
from penstock.notebook import LiveChart, LiveTable
from penstock.security.live.client import AdminClient
from waiting import wait_until

A_ID = 11


def state(widget: Any) -> dict[str, Any]:
    """What the browser would receive."""
    return dict(widget.get_state())


def test_a_table_follows_a_subscription_until_it_ends(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    with penstock.connect(server.url, credentials=credentials("alice")) as alice:
        subscription = alice.subscribe("md.us.eq.*.quote", model=Quote)
        table = LiveTable(subscription, ["bid_size"], interval_s=0.01)
        assert (state(table)["columns"], state(table)["rows"]) == (["topic", "seq", "bid_size"], [])
        with adapter_on(channel, A_ID, feed) as publisher:
            publisher.publish_batch(Originated("md.us.eq.IBM.quote", [1, 2]))
            publisher.publish_batch(Originated("md.us.eq.AAPL.quote", [3]))
            expected = [["md.us.eq.AAPL.quote", "3", "3"], ["md.us.eq.IBM.quote", "2", "2"]]
            wait_until(lambda: state(table)["rows"] == expected, "the newest rows")
        assert state(table)["state"] == ""
        subscription.cancel()
        wait_until(lambda: state(table)["state"] == "the subscription is closed", "the end")
        assert state(table)["rows"] == expected
        table.close()


def test_a_chart_follows_records_until_it_is_stopped() -> None:
    with StandInNode() as node, records_of(node, is_offloaded=False) as quotes:
        chart = LiveChart(quotes, "bid_price", points_max=5, interval_s=0.01)
        for price in (1, 2):
            node.publish("md.A", quote(price))

        def has_all_points() -> bool:
            return [[value for _, value in each["points"]] for each in state(chart)["series"]] == [[2.0] * 5]

        wait_until(has_all_points, "five points of the newest value")
        node.publish("md.B", quote(7))
        wait_until(lambda: [each["name"] for each in state(chart)["series"]] == ["md.A", "md.B"], "two lines")
        chart.stop()
        assert state(chart)["state"] == "stopped"
        assert quotes["md.B"].bid_price == 7.0  # the records stay open
        wrong = LiveChart(quotes, "symbol", interval_s=0.01)
        wait_until(lambda: "which is a text" in state(wrong)["state"], "the reason")
        with pytest.raises(ConfigurationError, match="an interval of 0 s"):
            LiveTable(quotes, interval_s=0)


def test_the_package_names_the_command_that_installs_it() -> None:
    code = "import sys; sys.modules['anywidget'] = None; import penstock.notebook"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "the package anywidget is not installed (pip install 'penstock[notebook]')" in done.stderr
