"""Live quotes in a real browser: a price that changes, a source that stops, a right that is revoked."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.browser_kit import PHONE, Visits, ask_to_watch, go_to, notice, row, too_wide, watch
from client_kit import Originated
from integration.console_kit import SECRETS, RunningConsole, feeding, running_console
from penstock.base.errors import NotFoundError
from penstock.middleware.live import MulticastPublisher
from penstock.model import shipped
from penstock.security import Credentials
from penstock.security.core.authentication import PUBLISHERS
from penstock.security.live.client import AdminClient
from waiting import wait_until

AAPL = "md.us.eq.AAPL"


class Market:
    """A console over a feed that sends the messages of the test."""

    def __init__(self, console: RunningConsole, publisher: MulticastPublisher) -> None:
        self.port = console.console.port
        self.console = console
        self._publisher = publisher
        self._number = 0

    def quote(self, instrument: str, **values: Any) -> None:
        self._number += 1
        self._publisher.publish_batch(Originated(f"{instrument}.quote", [self._number], **values))

    def publish(self, topic: str, **values: Any) -> None:
        """A message of the model that the last level of its topic names."""
        model = {"snapshot": "book_snapshot"}.get(kind := topic.rpartition(".")[2], kind)
        self._number += 1
        self._publisher.publish_batch(Originated(topic, [self._number], model=shipped(model), **values))

    def connect(self, name: str) -> AdminClient:
        """A session at the administration server."""
        return AdminClient.connect(self.console.admin.url, Credentials(name, secret=SECRETS[name].encode()))

    def keys(self) -> set[int]:
        """The keys that authenticate packets of the feed."""
        with self.connect("nodes") as client:
            scopes = client.authentication().scopes
        return {key.key_id for each in scopes if each.scope != PUBLISHERS for key in each.keys}


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with running_console(tmp_path_factory.mktemp("market")) as console, feeding(console) as publisher:
        yield Market(console, publisher)


@pytest.mark.spec("TREE-9")
def test_a_price_changes_live_and_becomes_stale_when_its_source_stops(visits: Visits, market: Market) -> None:
    page = visits.log_in(market.port, "alice")
    page.get_by_label("Stale after").select_option("120")
    watch(page, "md.us.eq.AAPL.>", "md.us.eq.IBM.>")
    expect(page.locator("#watch-list li")).to_have_count(1)
    shown, other = row(page, AAPL), row(page, "md.us.eq.IBM")
    bid = shown.locator(".bid .value")
    expect(page.locator("#quotes-empty")).to_have_text("Nothing has arrived yet.")
    market.quote("md.us.eq.IBM", bid_price="24.50", ask_price="24.51")
    market.quote(AAPL, bid_price="189.31", ask_price="189.33", ask_size=300)
    expect(bid).to_have_text("189.31")
    expect(shown.locator(".ask")).to_contain_text("189.33")
    expect(shown.locator(".ask .size")).to_have_text("300")
    expect(shown).not_to_have_class("stale")

    market.quote(AAPL, bid_price="189.41", ask_price="189.43")
    expect(bid).to_have_text("189.41")
    expect(bid).to_have_attribute("data-moved", "up")
    expect(shown.locator(".change")).to_have_text("▲ +0.10")
    market.quote(AAPL, bid_price="189.21", ask_price="189.23")
    expect(bid).to_have_attribute("data-moved", "down")
    expect(shown.locator(".change")).to_have_text("▼ −0.10")
    expect(shown.locator(".updates")).to_have_text("3")
    expect(other.locator(".bid .value")).to_have_text("24.50")

    page.get_by_label("Stale after").select_option("2")
    expect(shown).to_have_class("stale")  # no further messages
    expect(shown.locator(".age")).to_contain_text("STALE")
    expect(page.locator("#quotes-state")).to_contain_text("2 STALE")
    assert "line-through" in str(bid.evaluate("element => getComputedStyle(element).textDecorationLine"))

    def is_fresh() -> bool:
        market.quote(AAPL, bid_price="189.22")
        return shown.get_attribute("class") != "stale"

    wait_until(is_fresh, "a quote that is not stale")  # a busy machine may show one quote only after two seconds
    expect(shown.locator(".ask .value")).to_have_text("–")  # no offer

    expect(shown.locator(".plot canvas")).to_be_visible()
    page.set_viewport_size(PHONE)
    assert too_wide(page) == []


def test_the_watch_list_is_stored_and_can_be_edited(visits: Visits, market: Market) -> None:
    page = visits.log_in(market.port, "alice")
    watch(page, "md.us.eq.IBM.quote")
    ask_to_watch(page, "md..eq")
    wrong = page.locator("#watch-list li.is-bad")
    expect(wrong).to_contain_text("md..eq")  # with the error
    wrong.get_by_role("button", name="Stop watching md..eq").click()
    expect(page.get_by_label("Topics to watch")).to_be_focused()
    market.quote("md.us.eq.IBM", bid_price="24.60")
    expect(row(page, "md.us.eq.IBM")).to_contain_text("24.60")
    page.reload()
    expect(page.locator("#watch-list li")).to_have_count(1)
    expect(page.locator("#watch-list")).to_contain_text("md.us.eq.IBM.quote")
    expect(page.locator("#watch-list li")).to_have_attribute("data-state", "held")
    market.quote("md.us.eq.IBM", bid_price="24.70")
    expect(row(page, "md.us.eq.IBM")).to_contain_text("24.70")
    page.get_by_role("button", name="Stop watching").click()
    expect(page.locator("#quote-rows tr")).to_have_count(0)


@pytest.mark.spec("TREE-9")
def test_a_new_user_gets_a_watch_list_of_topics_with_data_and_keeps_changes(visits: Visits, market: Market) -> None:
    page = visits.log_in(market.port, "alice", has_watch_list=False)
    sample = page.locator("#watch-list li")
    expect(sample).to_have_attribute("data-state", "held")
    expect(sample).to_contain_text("looking for topics with data")
    market.quote(AAPL, bid_price="189.31", ask_price="189.33")
    market.quote("md.us.eq.IBM", bid_price="24.50", ask_price="24.51")
    expect(row(page, AAPL).locator(".bid .value")).to_have_text("189.31")  # nothing has been published since
    expect(row(page, "md.us.eq.IBM").locator(".bid .value")).to_have_text("24.50")
    chips = page.locator("#watch-list li")
    expect(chips).to_have_count(2)
    expect(chips.first).to_contain_text("md.us.eq.AAPL.quote md.us.eq.AAPL.trade")
    expect(page.locator('#watch-list li[data-state="held"]')).to_have_count(2)
    market.quote(AAPL, bid_price="189.41", ask_price="189.43")
    expect(row(page, AAPL).locator(".bid .value")).to_have_text("189.41")

    page.get_by_role("button", name="Stop watching md.us.eq.IBM").click()
    expect(row(page, "md.us.eq.IBM")).to_have_count(0)
    page.reload()
    expect(page.locator('#watch-list li[data-state="held"]')).to_have_count(1)
    page.get_by_role("button", name="Stop watching md.us.eq.AAPL").click()
    page.reload()
    expect(page.locator("#console")).to_be_visible()
    expect(page.locator("#watch-list li")).to_have_count(0)  # an empty list is a choice, too
    expect(page.locator("#quotes-empty")).to_contain_text("Name topics to watch")


def test_a_topic_that_the_user_names_ends_the_search_for_topics(visits: Visits, market: Market) -> None:
    page = visits.log_in(market.port, "bob", has_watch_list=False)
    expect(page.locator("#watch-list li")).to_have_attribute("data-state", "held")
    watch(page, "md.us.eq.IBM.quote")
    expect(page.locator("#watch-list li")).to_have_count(1)
    market.quote(AAPL, bid_price="189.31")
    market.quote("md.us.eq.IBM", bid_price="24.50")
    expect(row(page, "md.us.eq.IBM")).to_contain_text("24.50")
    assert page.locator("#quote-rows tr").count() == 1


@pytest.mark.spec("TREE-9")
def test_the_order_book_has_the_levels_that_the_plant_publishes(visits: Visits, market: Market) -> None:
    page = visits.log_in(market.port, "alice")
    page.get_by_label("Stale after").select_option("120")
    go_to(page, "Book")
    expect(page.locator("#book-state")).to_have_text("Name an instrument: md.us.eq.AAPL")
    page.get_by_label("Instrument", exact=True).fill("md.us.eq.MSFT")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#book-state")).to_have_text("Nothing has arrived yet.")
    bids, asks, trades = (page.locator(f"#book-{name} tr") for name in ("bid", "ask", "trades tbody"))
    expect(page.locator("#book-state")).to_have_attribute("data-state", "held held")
    market.publish("md.us.eq.MSFT.quote", bid_price="410.10", ask_price="410.12", ask_size=300)
    expect(page.locator("#book-state")).to_contain_text("Best bid and offer only: no snapshot of the book")
    expect(bids).to_have_count(1)
    expect(bids).to_contain_text("410.10")
    expect(asks).to_have_text("410.12300")

    market.publish("md.us.eq.MSFT.trade", price="410.11", quantity=40)
    market.publish("md.us.eq.MSFT.trade", price="410.12", quantity=50)
    expect(trades).to_have_count(2)
    expect(trades.first).to_contain_text("410.12")

    market.publish("md.us.eq.MSFT.snapshot", **levels_of_book(3))
    expect(bids).to_have_count(3)
    expect(asks).to_have_count(3)
    expect(bids.nth(2)).to_have_text("3300410.07")
    expect(asks.nth(2)).to_have_text("410.153003")
    expect(page.locator("#book-state")).to_contain_text("3 levels of the book")
    page.set_viewport_size(PHONE)
    assert too_wide(page) == []
    page.reload()
    expect(page.get_by_label("Instrument", exact=True)).to_have_value("md.us.eq.MSFT")
    page.goto(f"http://127.0.0.1:{market.port}/#quotes")
    expect(page.locator("#watch-list li")).to_have_count(0)  # the subscription is not one of the watch list


def levels_of_book(depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for n in range(1, depth + 1):
        fields |= {f"bid_price_{n}": f"410.{10 - n:02}", f"ask_price_{n}": f"410.{12 + n:02}"}
        for side in ("bid", "ask"):
            fields |= {f"{side}_size_{n}": 100 * n, f"{side}_orders_{n}": n}
    return fields


@pytest.mark.spec("TREE-9")
def test_an_alert_on_a_price_is_told_and_kept(visits: Visits, market: Market) -> None:
    page = visits.log_in(market.port, "alice", "alerts")
    page.get_by_label("Tell me when").select_option("above")
    page.get_by_label("Instrument or node").fill("md.us.eq.ORCL")
    page.get_by_label("Price", exact=True).select_option("bid")
    page.get_by_label("Limit").fill("120.5")
    page.get_by_role("button", name="Add").click()
    alert = page.locator("#alert-table tbody tr")
    expect(alert).to_contain_text("bid of md.us.eq.ORCL is above 120.50")
    expect(alert).to_contain_text("not met")
    page.reload()  # kept in the browser; the page subscribes again
    expect(alert).to_contain_text("bid of md.us.eq.ORCL is above 120.50")
    told = notice(page, "alert")
    beat = iter(range(1_000_000))

    def quote_until(bid: str, text: str) -> None:
        """Quotes before the subscription is held do not arrive."""
        wait_until(
            lambda: market.quote("md.us.eq.ORCL", bid_price=bid, ask_size=next(beat)) or text in alert.inner_text(),
            f"{text}: the alert has seen {bid}",
        )

    quote_until("120.50", "bid 120.50")
    expect(alert).to_contain_text("not met")
    expect(told).to_have_count(0)
    quote_until("120.51", "MET")
    expect(told).to_contain_text("Alert: bid of md.us.eq.ORCL is above 120.50.")
    go_to(page, "Topology")
    expect(told).to_be_visible()  # in every section
    told.get_by_role("button", name="Understood").click()
    go_to(page, "Alerts")
    quote_until("119.00", "not met")
    expect(told).to_have_count(0)
    page.get_by_role("button", name="Remove the alert").click()
    expect(alert).to_have_count(0)
    page.set_viewport_size(PHONE)
    assert too_wide(page) == []
    page.reload()
    expect(page.locator("#alert-empty")).to_be_visible()
    go_to(page, "Quotes")
    expect(page.locator("#quote-rows tr")).to_have_count(0)


@pytest.fixture
def rights(market: Market) -> Iterator[None]:
    """Restore all rights of Alice and Bob after the test, however it ends: the console is shared."""
    yield
    with market.connect("boss") as client:
        for name in ("alice", "bob"):
            with contextlib.suppress(NotFoundError):  # no revocation
                client.restore(name)


@pytest.mark.spec("TREE-6", "TREE-9")
def test_a_revoked_user_is_informed(visits: Visits, market: Market, rights: None) -> None:
    bob, alice = visits.log_in(market.port, "bob"), visits.log_in(market.port, "alice")
    for page in (bob, alice):
        watch(page, "md.us.eq.AAPL.>")
    market.quote(AAPL, bid_price="200.00")
    for page in (bob, alice):
        expect(row(page, AAPL)).to_contain_text("200.00")
    keys = market.keys()
    boss = visits.log_in(market.port, "boss", "clients")
    boss.get_by_role("button", name="Revoke bob").click()
    asked = boss.get_by_role("dialog", name="Revoke rights of bob?")
    asked.get_by_role("button", name="Revoke").click()
    expect(asked.get_by_label("Topics")).to_be_focused()  # no right is revoked without a name
    asked.get_by_label("Topics").fill("md.us.eq..AAPL")
    asked.get_by_role("button", name="Revoke").click()
    expect(asked.get_by_label("Reason")).to_be_focused()  # nor without a reason
    asked.get_by_label("Reason").fill("not paid")
    asked.get_by_role("button", name="Revoke").click()
    expect(asked.get_by_role("alert")).to_contain_text("md.us.eq..AAPL")  # refused, with the reason
    asked.get_by_label("Topics").fill(">")
    asked.get_by_role("button", name="Revoke").click()
    expect(notice(boss, "done")).to_contain_text("revoke bob")  # first, because the notice disappears by itself
    expect(asked).to_be_hidden()
    expect(boss.get_by_role("button", name="Revoke bob")).to_be_focused()
    expect(boss.locator("#entitlements")).to_contain_text("not paid")

    expect(notice(bob, "revoked")).to_contain_text("not paid")
    expect(row(bob, AAPL)).to_have_class("stale")
    expect(bob.locator("#watch-list li")).to_contain_text("not paid")
    wait_until(lambda: keys.isdisjoint(market.keys()), "the end of the keys that bob has")
    market.quote(AAPL, bid_price="201.00")
    expect(row(alice, AAPL)).to_contain_text("201.00")
    expect(row(bob, AAPL)).not_to_contain_text("201.00")
    expect(notice(alice, "revoked")).to_have_count(0)

    boss.get_by_role("button", name="Restore bob").click()
    boss.get_by_label("Reason").fill("paid")
    boss.keyboard.press("Enter")
    expect(notice(boss, "done")).to_contain_text("restore bob")
    bob.get_by_role("button", name="Understood").click()
    expect(notice(bob, "revoked")).to_have_count(0)
    bob.get_by_role("button", name="Try again").click()
    expect(bob.locator("#watch-list li")).to_have_attribute("data-state", "held")


def test_a_notice_stays_ten_seconds_whatever_actions_came_before(visits: Visits, market: Market, rights: None) -> None:
    boss = visits.log_in(market.port, "boss", "clients")
    boss.clock.install()
    done = notice(boss, "done")
    for name in ("bob", "alice"):
        boss.get_by_role("button", name=f"Revoke {name}").click()
        asked = boss.get_by_role("dialog")
        asked.get_by_label("Topics").fill("app.>")
        asked.get_by_label("Reason").fill("not paid")
        boss.keyboard.press("Enter")
        expect(done).to_contain_text(f"revoke {name}")
        boss.clock.fast_forward(6_000)
    assert done.count() == 1  # twelve seconds after the first action, six after the second
    boss.clock.fast_forward(6_000)
    expect(done).to_have_count(0)


def test_auditors_see_all_rights_and_change_none(visits: Visits, market: Market) -> None:
    clerk = visits.log_in(market.port, "clerk", "clients")
    expect(clerk.locator("#entitlements")).to_contain_text("receive md.>")
    for name in ("Revoke bob", "Restore bob"):
        expect(clerk.get_by_role("button", name=name)).to_be_disabled()
    expect(clerk.locator("#entitlements-told")).to_contain_text("needs the role administrator")
    alice = visits.log_in(market.port, "alice", "clients")
    expect(alice.locator("#rights")).to_contain_text("receive md.>")
    expect(alice.locator("#entitlements-told")).to_contain_text("need the role administrator or auditor")
    expect(alice.locator("#entitlements")).to_be_empty()
    boss = visits.log_in(market.port, "boss", "clients")
    expect(boss.get_by_role("button", name="Revoke bob")).to_be_enabled()
    expect(boss.get_by_role("button", name="Restore bob")).to_be_disabled()
    expect(boss.get_by_role("button", name="Restore bob")).to_have_attribute(
        "title", "Nothing of this client is revoked."
    )
