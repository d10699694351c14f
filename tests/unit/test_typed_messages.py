"""Messages have static types: classes of models, at run time and for a type checker."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock.models
from documents_kit import blocks_of
from penstock.base.errors import ModelError
from penstock.capture.live.reading import Models, OneModel
from penstock.model import Message, MessageModel, shipped, shipped_names
from penstock.model.stubs import module_of, shipped_stub
from penstock.models import Quote, Trade
from penstock.wire import PacketMessage

FILL = """
id = 100
name = "own_fill"
version = 2
description = 'A "fill" of \\ ours'
[[field]]
name = "price"
type = "price"
decimals = 4
[[field]]
name = "side"
type = "enum"
values = { buy = 1, sell = 2 }
[[field]]
name = "marks"
type = "flags"
bits = { late = 0, hidden = 1 }
[[field]]
name = "note"
type = "text"
size = 8
since = 2
"""

TYPED = """
import penstock
from own import OwnFill
from penstock.client import Batch, Client, Subscription
from penstock.model import Message
from penstock.models import Quote, Trade


def read(client: Client) -> None:
    subscription = client.subscribe("md.us.eq.*.quote", model=Quote, where="bid_price > 1")
    kind: Subscription[Quote] = subscription
    for quote in subscription:
        price: float | None = quote.bid_price
        topic: str = quote.topic
        halted: bool = "halted" in quote.conditions
        print(quote.bid_prise)  # error: "Quote" has no attribute "bid_prise"
        size: str = quote.bid_size  # error: Incompatible types in assignment
        quote.unknown = 1  # error: "Quote" has no attribute "unknown"
        any_message(quote)
    batch: Batch[Trade] = next(client.subscribe("md.>", model=Trade).batches())
    prices = [trade.price for trade in batch]
    first = client.subscribe("md.>", model=Trade).next(1.0)
    print(first.price)  # error: has no attribute "price"
    for message in client.subscribe("md.>"):
        print(message.anything, message.topic)
    client.subscribe("md.>", model=shipped)  # error: Name "shipped" is not defined
    client.subscribe("md.>", node="auto", model=Quote)  # error: No overload variant


async def read_in_a_loop(client: Client) -> list[int]:
    return [quote.bid_size async for quote in client.subscribe("md.>", model=Quote)]


def any_message(message: Message) -> None:
    print(message.anything)


def write(client: Client) -> None:
    quote = Quote(symbol="AAPL", bid_price="187.25", conditions={"halted"})
    quote.bid_size = 300
    with client.publisher("app.>") as publisher:
        publisher.publish("app.quote", quote)
    Quote(bid_prise=1.0)  # error: Unexpected keyword argument "bid_prise"
    Quote(conditions={"haltet"})  # error: incompatible type
    fill = OwnFill(side="buy", price=1.5)
    side: str = fill.side  # error: Incompatible types in assignment
    note: str = fill.note  # error: Incompatible types in assignment
"""


def test_classes_of_shipped_models_are_current(project: Path) -> None:
    stub = (project / "src" / "penstock" / "models.pyi").read_text()
    assert stub == shipped_stub(), "src/penstock/models.pyi is stale: run `make docs`"
    assert sorted(penstock.models.__all__) == sorted(shipped(name).class_name for name in shipped_names())
    for name in penstock.models.__all__:
        assert f"\nclass {name}(" in stub
    with pytest.raises(AttributeError, match="Quotes"):
        _ = penstock.models.Quotes  # type: ignore[attr-defined]


def test_a_class_makes_messages_of_its_model() -> None:
    quote = Quote(symbol="AAPL", bid_price="187.25")
    assert type(quote) is Quote is shipped("quote").message_class
    assert quote == shipped("quote").new(symbol="AAPL", bid_price=187.25)
    assert isinstance(quote, Message)
    assert isinstance(quote.copy(), Quote)
    assert Quote.model.view(bytes(quote)).symbol == "AAPL"
    with pytest.raises(ModelError, match="no field 'bid_prise'"):
        Quote(bid_prise=1)  # type: ignore[call-arg]


def test_generated_modules_run_and_are_refused_where_names_collide(tmp_path: Path) -> None:
    model = MessageModel.parse(FILL)
    space: dict[str, Any] = {}
    exec(compile(module_of([model, shipped("trade")]), "own.py", "exec"), space)
    fill = space["OwnFill"](price="1.5", side="sell", marks={"late"})
    assert (fill.price, fill.side, fill.model) == (1.5, "sell", model)
    assert space["OwnFill"].__doc__ == 'A "fill" of \\ ours'
    with pytest.raises(ModelError, match="class name 'OwnFill'"):
        module_of([model, model])
    for taken in ("true", "decimal", "typed_message"):
        with pytest.raises(ModelError, match="as a name of its own"):
            module_of([MessageModel.parse(FILL.replace('"own_fill"', f'"{taken}"'))])
    with pytest.raises(ModelError, match="the field 'int'"):
        module_of([MessageModel.parse(FILL.replace('"note"', '"int"'))])


@pytest.mark.spec("TOOL-8")
def test_mypy_checks_messages_and_the_documented_programs(project: Path, tmp_path: Path) -> None:
    """One run, in strict mode: the classes' fields, the first program of README, and all programs of three guides."""
    (tmp_path / "own.py").write_text(module_of([MessageModel.parse(FILL)]))
    (tmp_path / "typed.py").write_text(TYPED)
    (hero, *_) = [block for block in blocks_of(project / "README.md") if block.kind == "python"]
    (tmp_path / "hero.py").write_text(hero.text)
    checked = ["own.py", "typed.py", "hero.py"]
    for name in ("client", "notebook", "records"):
        blocks = blocks_of(project / "docs/how-to" / f"{name}.md")
        text = "\n".join(block.text for block in blocks if block.kind == "python" and block.needs_plant)
        (tmp_path / f"{name}.py").write_text(text)
        checked.append(f"{name}.py")
    options = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *checked],
        cwd=tmp_path,
        env={"MYPYPATH": str(project / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    expected = [
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(TYPED.splitlines(), 1)
        if "# error: " in line
    ]
    for number, text in expected:
        assert any(line.startswith(f"typed.py:{number}: ") and text in line for line in found), (number, text, found)
    assert len(found) == len(expected), found
    assert not done.stderr


def test_one_model_is_read_by_the_class_and_others_are_counted() -> None:
    reading = OneModel(Quote.model)
    quote = reading.read(PacketMessage("md.x", bytes(Quote(bid_size=7)), Quote.model.id, 1))
    assert isinstance(quote, Quote)
    assert quote.bid_size == 7
    assert reading.read(PacketMessage("md.x", bytes(Trade()), Trade.model.id, 1)) is None
    assert reading.others == 1
    with pytest.raises(ModelError, match="needs"):
        reading.read(PacketMessage("md.x", b"short", Quote.model.id, 1))


def test_a_model_that_no_stream_has_is_refused() -> None:
    models = Models(lambda model_id, version: MessageModel.parse(FILL))
    quote, trade = (Quote.model.id, 1), (Trade.model.id, 1)
    models.check_model(Quote.model, [])
    models.check_model(Quote.model, [[trade], []])  # a publisher's stream lists no models
    models.check_model(Quote.model, [[trade], [quote]])
    with pytest.raises(ModelError, match=r"is a quote \(model 1\).*own_fill, trade") as caught:
        models.check_model(Quote.model, [[trade], [(100, 2)]])
    assert caught.value.hint
    other = MessageModel.parse(FILL.replace('"note"', '"remark"'))
    with pytest.raises(ModelError, match="does not fit"):
        models.check_model(other, [[(100, 2)]])
