"""The console's page in a real browser: login, laptop and phone, keyboard, and the view without a console."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.browser_kit import (
    LAPTOP,
    PHONE,
    SECTIONS,
    Visits,
    fill_in,
    focused,
    go_to,
    has_visible_focus,
    node,
    notice,
    too_wide,
)
from integration.console_kit import RunningConsole, running_console, write_credentials


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest.fixture
def port(console: RunningConsole) -> int:
    return console.console.port


@pytest.mark.spec("TREE-9")
def test_login_and_logout_work_and_a_wrong_secret_is_reported(visits: Visits, port: int) -> None:
    page = visits.open(port)
    fill_in(page, "alice", "surely not this one")
    expect(page.get_by_role("alert")).to_contain_text("unknown client")
    expect(page.get_by_label("Secret")).to_be_focused()
    expect(page.get_by_label("Secret")).to_have_value("")
    expect(page.locator("#console")).to_be_hidden()
    fill_in(page, "alice", "the secret of alice")
    expect(page.locator("#who")).to_contain_text("alice")
    expect(page.locator("#link")).to_have_text("live")
    page.reload()
    expect(page.locator("#who")).to_contain_text("alice")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.reload()
    expect(page.get_by_label("Name", exact=True)).to_be_visible()


@pytest.mark.spec("TREE-9")
def test_a_link_logs_in_once_and_leaves_no_secret_in_the_address(visits: Visits, tmp_path: Path) -> None:
    credentials = str(write_credentials(tmp_path, "boss"))
    with running_console(tmp_path, login_credentials=credentials) as console:
        port = console.console.port
        link = console.login_link("boss")
        page = visits.open(port, link.partition("#")[2])
        expect(page.locator("#who")).to_contain_text("boss")
        expect(page.locator("#link")).to_have_text("live")
        assert page.url == f"http://127.0.0.1:{port}/"
        page.reload()
        expect(page.locator("#who")).to_contain_text("boss")

        second = visits.open(port, link.partition("#")[2])
        expect(second.get_by_role("alert")).to_contain_text("the login link was used before, or has expired")
        expect(second.get_by_label("Name", exact=True)).to_be_focused()
        assert "login" not in second.url
        second.evaluate("link => { location.href = link; }", console.login_link("boss"))  # into the open page
        expect(second.locator("#who")).to_contain_text("boss")
        second.evaluate("link => { location.href = link; }", link)
        expect(notice(second, "link")).to_contain_text("was used before")
        expect(second.locator("#who")).to_contain_text("boss")
        assert "login" not in second.url


def test_an_action_that_one_may_not_do_is_shown_with_the_reason(visits: Visits, port: int) -> None:
    clerk = visits.log_in(port, "alice", "topology")
    node(clerk, "admin").click()
    expect(clerk.locator("#node-panel")).to_contain_text("Up for")
    expect(clerk.get_by_role("button", name="Kill…")).to_be_disabled()
    expect(clerk.locator("#node-panel .refused")).to_contain_text("needs the role administrator")
    expect(clerk.locator("#who")).not_to_contain_text("operator")
    go_to(clerk, "Publish")
    expect(clerk.get_by_role("button", name="Publish")).to_be_disabled()
    expect(clerk.locator("#publish-rights")).to_contain_text("this plant has no distribution tree")
    go_to(clerk, "Quotes")
    expect(clerk.get_by_label("From")).to_be_disabled()
    expect(clerk.locator("#since-told")).to_contain_text("history needs a distribution tree")
    boss = visits.log_in(port, "boss", "topology")
    expect(boss.locator("#who")).to_contain_text("operator")
    node(boss, "admin").click()
    expect(boss.get_by_role("button", name="Kill…")).to_be_disabled()
    expect(boss.locator("#node-panel .refused")).to_contain_text("was not started by `penstock up`")


def test_no_section_is_wider_than_a_phone_or_a_laptop(visits: Visits, port: int) -> None:
    page = visits.log_in(port, "boss", color_scheme="dark")
    for size in (PHONE, LAPTOP):
        page.set_viewport_size(size)
        for section in SECTIONS:
            page.goto(f"http://127.0.0.1:{port}/#{section}")
            expect(page.locator(f"#{section}")).to_be_visible()
            assert too_wide(page) == [], (section, size)
        for link in page.get_by_role("navigation").get_by_role("link").all():
            box = link.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= size["width"]


def test_the_keyboard_alone_reaches_every_control(visits: Visits, port: int) -> None:
    page = visits.open(port)
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.type("boss")
    page.keyboard.press("Tab")
    page.keyboard.type("the secret of boss")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Quotes")).to_be_focused()

    page.reload()
    expect(page.locator("#console")).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "a Skip to the content"
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.keyboard.press("Tab")
    # neither header nor rail received the focus again
    assert page.evaluate("document.activeElement.closest('#quotes') !== null")

    page.reload()
    expect(page.locator("#console")).to_be_visible()
    seen = walk(page)
    for words in ("button Log out", "a Quotes", "a Topology", "a Publish", "input topics", "button Watch"):
        assert words in seen

    page.get_by_role("link", name="Topology").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Topology")).to_be_focused()
    page.keyboard.press("Tab")
    assert focused(page) == "button admin"
    page.keyboard.press("Space")
    expect(page.locator("#node-title")).to_have_text("admin")
    expect(node(page, "admin")).to_be_focused()  # the drawing is rendered again continuously


def walk(page: Page) -> list[str]:
    """One round by Tab: the focus is visible everywhere, and never trapped."""
    seen: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            return seen
        assert has_visible_focus(page), focused(page)
        seen.append(focused(page))
    raise AssertionError(f"the focus does not come around: {seen}")


def test_the_end_of_a_console_is_reported_and_no_value_looks_live(visits: Visits, tmp_path: Path) -> None:
    with running_console(tmp_path) as made:
        page = visits.log_in(made.console.port, "boss", "topology")
        expect(node(page, "admin")).to_contain_text("up")
    expect(notice(page, "watch")).to_contain_text("The console does not answer. Trying again")
    expect(page.locator("#link")).to_contain_text("STALE")
    expect(node(page, "admin")).to_contain_text("STALE")
    expect(page.locator("#node-table")).to_contain_text("was up")
    expect(page.locator("#topology-state")).to_contain_text("STALE: seen")


@pytest.mark.spec("TREE-9")
def test_the_history_of_a_node_is_drawn_over_a_chosen_time(visits: Visits, port: int) -> None:
    page = visits.log_in(port, "alice", "history")
    expect(page.get_by_label("Node", exact=True)).to_have_value("admin")
    expect(page.locator("#history-charts canvas")).to_have_count(3)
    expect(page.locator("#history-state")).to_have_text(re.compile(r"^[1-9]\d* s of 5 min$"))  # it grows
    expect(page.locator("#history-rates .legend-words")).to_have_text("in – · out –")  # a server has no rates
    page.get_by_label("Time range").select_option("60")
    expect(page.locator("#history-state")).to_contain_text("of 60 s")
    page.reload()
    expect(page.get_by_label("Time range")).to_have_value("60")
    page.set_viewport_size(PHONE)
    expect(page.locator("#history-charts canvas")).to_have_count(3)
    assert too_wide(page) == []


def test_the_history_has_the_newest_and_the_highest_values(visits: Visits, port: int) -> None:
    page = visits.log_in(port, "alice")
    now_ms = 1_794_779_400_000.0
    document = {
        "node": "admin", "from_ms": now_ms - 3_000, "to_ms": now_ms,
        "time_ms": [now_ms - 2_000, now_ms - 1_000, now_ms],
        "in_per_s": [20_000.0, None, 12_500.0], "out_per_s": [1.0, "many", 25_000.0, 7.0], "p50_us": "none",
        "p99_us": [80.0, 2_500.0, 90.0], "lost": [0, 7, 0],
    }  # fmt: skip
    page.route("**/api/history*", lambda route: route.fulfill(json=document))
    go_to(page, "History")
    expect(page.locator("#history-rates .legend-words")).to_have_text(
        "in 12.5 k (at most 20 k) · out 25 k (at most 25 k)"
    )
    latencies = page.locator("#history-latencies")
    expect(latencies.locator(".legend-words")).to_have_text("p50 – · p99 90 µs (at most 2.5 ms)")
    expect(latencies.locator(".plot")).to_have_attribute("aria-label", re.compile("p99 90 µs"))
    expect(page.locator("#history-losses")).to_contain_text("lost 0 (at most 7)")


def test_reduced_motion_is_respected(visits: Visits, port: int) -> None:
    page = visits.log_in(port, "alice", "topology", reduced_motion="reduce")
    expect(node(page, "admin")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.node')).transitionDuration") == "0s"


def test_sections_have_urls_and_the_back_button_works(visits: Visits, port: int) -> None:
    page = visits.log_in(port, "alice")
    go_to(page, "Streams")
    expect(page).to_have_title("Streams and losses · Penstock console")
    expect(page.get_by_role("link", name="Streams")).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(page.locator("#quotes")).to_be_visible()


def test_the_focused_element_keeps_the_focus_when_rows_are_reordered(visits: Visits, console: RunningConsole) -> None:
    page = visits.log_in(console.console.port, "boss")
    order = page.evaluate(
        """async () => {
            const { reconcile } = await import("/assets/js/dom.js");
            const list = document.createElement("ul");
            document.body.append(list);
            const make = (name) => {
                const button = document.createElement("button");
                button.textContent = name;
                return button;
            };
            const show = (names) => reconcile(list, names, (name) => name, make, () => {});
            show(["one", "two", "three"]);
            list.children[2].focus();
            show(["three", "four", "one"]);
            return [document.activeElement.textContent, ...[...list.children].map((each) => each.textContent)];
        }"""
    )
    assert order == ["three", "three", "four", "one"]
