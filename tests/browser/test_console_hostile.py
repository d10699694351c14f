"""The page shows all content from a console as text, and stays usable."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import WebSocketRoute, expect

from browser.browser_kit import PHONE, Visits, ask_to_watch, node, row, too_wide
from integration.console_kit import RunningConsole, running_console
from waiting import wait_until

MARKUP = "<img src=x onerror=\"document.title='caught'\">"
TURNED = "abc\u202edcb\u2066\u0007\n"
LONG = "w" * 5_000


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console")) as made:
        yield made


def hostile_picture() -> dict[str, Any]:
    names = [MARKUP, TURNED, LONG, "a", "b", "c", "__proto__", "</script>"]
    rows = [
        {"node": name, "role": MARKUP, "place": TURNED, "state": MARKUP, "detail": LONG, "parent": MARKUP}
        for name in names
    ]
    rows += [
        {"node": "bare"},
        {"node": "odd", "state": "up", "latency_us": "none", "out_per_s": "fast", "lost": MARKUP},
    ]
    pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "a"), ("nobody", "a"), (MARKUP, TURNED), (LONG, "__proto__")]
    links = [{"from": source, "to": target, "kind": MARKUP, "state": "up", "per_s": MARKUP} for source, target in pairs]
    texts = dict.fromkeys(("stream", "state", "component", "what", "cause", "consumer", "destination"), MARKUP)
    return {
        "kind": "picture",
        "number": MARKUP,
        "plant": MARKUP,
        "time_ms": MARKUP,
        "age_s": 0.0,
        "interval_s": 3_600,
        "nodes": [*rows, None, 7],
        "links": [*links, None],
        "streams": [{"node": LONG, **texts, "position": "9" * 30, "per_s": None}],
        "losses": [{"node": MARKUP, **texts, "count": "many"}],
        "consumers": [{"node": MARKUP, **texts, "sent": "x"}],
    }


def tell(route: WebSocketRoute, *documents: Any) -> None:
    for document in documents:
        route.send(document if isinstance(document, str) else json.dumps(document))


def test_markup_and_invalid_values_in_the_graph_are_shown_as_text(visits: Visits, console: RunningConsole) -> None:
    info = {"kind": "info", "number": 1, "time_ms": "never", "agent": MARKUP, "info": MARKUP, "detail": MARKUP + LONG}
    nonsense = ["", "null", "7", "[]", "{}", '{"kind": "unheard-of"}', '{"kind": 7}', "{", "\u0000"]

    def answer(route: WebSocketRoute) -> None:
        tell(route, *nonsense, hostile_picture(), info, {"kind": "info", "number": "two"}, {"kind": "audit"})

    page = visits.log_in(console.console.port, "boss", sockets={"/ws/watch": answer}, viewport=PHONE)
    page.goto(f"http://127.0.0.1:{console.console.port}/#topology")
    expect(node(page, "a")).to_be_visible()
    assert page.locator(".node").count() == 10
    assert page.locator("#graph img, #content img").count() == 0
    expect(page.locator("#node-table")).to_contain_text(MARKUP)
    assert "\u202e" not in page.locator("body").inner_text()
    page.locator(".node").first.click()
    expect(page.locator("#node-title")).not_to_have_text("Choose a node")
    for section, what in (("infostream", MARKUP), ("streams", MARKUP), ("clients", MARKUP)):
        page.goto(f"http://127.0.0.1:{console.console.port}/#{section}")
        expect(page.locator(f"#{section}")).to_contain_text(what)
        assert page.locator("#content img").count() == 0
        assert too_wide(page) == [], section
    assert "Penstock console" in page.title()


def test_markup_and_invalid_values_in_messages_are_shown_as_text(visits: Visits, console: RunningConsole) -> None:
    common = {"ids": [1], "stream": "md", "seq": 1, "time_ms": 1e15, "model": "quote"}
    messages = [
        {
            **common,
            "topic": f"md.{MARKUP}.quote",
            "fields": {"bid_price": MARKUP, "ask_price": 1e400, "bid_size": LONG},
        },
        {
            **common,
            "topic": "md.text",
            "model": MARKUP,
            "fields": {MARKUP: TURNED, "list": [MARKUP], "map": {"a": MARKUP}},
        },
        {**common, "topic": "md.__proto__", "fields": None},
        {**common, "topic": 7},
        None,
        {**common, "topic": "md.IBM.quote", "fields": {"bid_price": 10.5, "ask_price": "10.75"}},
    ]

    documents = [
        {"kind": "welcome", "agent": MARKUP, "path": MARKUP},
        {"kind": "models", "models": [{"name": MARKUP, "fields": [{"name": MARKUP, "type": MARKUP}]}, None, 7]},
        {"kind": "subscribed", "id": 99},
        {"kind": "refused", "op": MARKUP},
        {"kind": "revoked", "topics": [MARKUP], "reason": MARKUP},
        {"kind": "receipt", "id": 1, "receipt": "conflated", "count": 310},
        {"kind": "receipt", "id": 1, "receipt": "lost", "first": 7, "last": 9},
        {"kind": "receipt", "id": 1, "receipt": MARKUP, "count": MARKUP},
        {"kind": "receipt", "id": MARKUP},
        {"kind": "messages", "messages": "none"},
        json.dumps({"kind": "messages", "messages": messages}).replace("Infinity", "1e400"),
    ]

    def answer(route: WebSocketRoute) -> None:
        route.on_message(lambda asked: tell(route, *documents) if '"subscribe"' in str(asked) else None)

    page = visits.log_in(console.console.port, "boss", sockets={"/ws/stream": answer}, viewport=PHONE)
    ask_to_watch(page, "md.>")
    expect(row(page, "md.IBM")).to_contain_text("10.75")
    expect(page.locator("#quote-rows")).to_contain_text(MARKUP)
    expect(page.locator("#notices")).to_contain_text(f"Your right to {MARKUP} was revoked: {MARKUP}")
    assert page.locator("#quote-rows tr").count() == 4
    expect(page.locator("#watch-list")).to_contain_text("(310 conflated, 3 lost)")
    assert too_wide(page) == []
    page.goto(f"http://127.0.0.1:{console.console.port}/#publish")
    expect(page.locator("#publish-form")).to_contain_text(MARKUP)
    assert page.locator("#content img").count() == 0
    assert "Penstock console" in page.title()


def test_alerts_on_nodes_are_told_and_hostile_names_are_text(visits: Visits, console: RunningConsole) -> None:
    routes: list[WebSocketRoute] = []
    page = visits.log_in(
        console.console.port, "boss", "alerts", sockets={"/ws/watch": lambda route: routes.append(route)}
    )
    for kind in ("loss", "state"):
        page.get_by_label("Tell me when").select_option(kind)
        page.get_by_role("button", name="Add").click()
    losses, states = (page.locator("#alert-table tbody tr").filter(has_text=text) for text in ("loses", "is not up"))

    def picture(**values: Any) -> dict[str, Any]:
        return {**hostile_picture(), "nodes": [{"node": MARKUP, "role": "adapter", "state": "up", **values}, None, 7]}

    wait_until(lambda: page.evaluate("true") and bool(routes), "the page watches")
    tell(routes[0], picture(lost=5))
    expect(page.locator("#link")).to_have_text("live")
    expect(losses).to_contain_text("not met")  # of earlier losses nothing is told
    expect(states).to_contain_text("not met")
    tell(routes[0], picture(lost="many"), picture(lost=8, state="failed"))
    expect(losses).to_contain_text(f"{MARKUP} lost 3")
    expect(states).to_contain_text(f"{MARKUP} is failed")
    expect(page.locator("#notices")).to_contain_text("Alert: any node loses messages.")
    expect(page.locator("#notices")).to_contain_text("Alert: any node is not up.")
    tell(routes[0], picture(lost=8))
    expect(losses).to_contain_text("not met")
    expect(states).to_contain_text("not met")
    assert page.locator("#content img").count() == 0


def test_stored_values_that_are_none_are_dropped(visits: Visits, console: RunningConsole) -> None:
    page = visits.log_in(console.console.port, "boss", "alerts")
    for value in ("{", "7", "null", '[{"kind": "above"}]', '[{"kind": "x", "subject": ""}]', '["<img>"]'):
        for name in ("watch", "alerts", "book"):
            page.evaluate(
                "([name, value]) => localStorage.setItem(`penstock:${name}:trial:boss`, value)", [name, value]
            )
        page.reload()
        expect(page.locator("#alert-empty")).to_be_visible()
        expect(page.locator("#who")).to_contain_text("boss")
