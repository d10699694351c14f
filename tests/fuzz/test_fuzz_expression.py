"""Malformed filter expressions result in a FilterExpressionError or a predicate, within a short time."""

import random

import pytest

from penstock.base.errors import FilterExpressionError
from penstock.model import shipped
from penstock.topics import Predicate

SEEDS = [
    "symbol = 'IBM' and price > 100",
    "price between 1.5 and 2 or not (quantity in (1, 2, 3) and venue is not null)",
    "symbol like 'A%_' and event_time >= timestamp '2024-03-28 14:30:00.000000001'",
    "has(conditions, 'odd_lot') or action <> 'cancel' or aggressor = 'buy'",
]
WORD_TEXT = """
    and or not ( ) = <> < <= > >= <=> like in between is null true false ' " ` , . ; - + * / % | || & ^ ~ ! @ # $ ? : ::
    [ ] { } -- /* */ {{ }} case when then else end cast as date timestamp interval select from where exists over array
    struct lambda -> => 1 0 1e9 0x1F .5 5L 1.5BD X'41' r'x' price symbol conditions has( upper( é 漢 escape any all
    9999999999999999999999999999 distinct unnest lateral values with union
"""
WORDS = [*WORD_TEXT.split(), "\\", "\0", "\u2028", "\ud800"]


def mutated(source: random.Random) -> str:
    text = source.choice(SEEDS)
    for _ in range(source.randint(1, 5)):
        at = source.randrange(len(text) + 1)
        kind = source.randrange(4)
        if kind == 0:
            text = text[:at] + " " + source.choice(WORDS) + " " + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + source.randint(1, 8) :]
        elif kind == 2:
            text = text[:at] + chr(source.randrange(0x110000)) + text[at:]
        else:
            text = (
                text[:at] + source.choice(["(", "not ", "-", "a.", "[", "case "]) * source.randint(1, 200) + text[at:]
            )
    return text


@pytest.mark.parametrize("seed", range(4))
def test_mutated_expressions(seed: int, soak: bool) -> None:
    source = random.Random(seed)
    trade = shipped("trade")
    record = bytes(trade.new(symbol="IBM", price=101))
    for _ in range(20_000 if soak else 400):
        text = mutated(source)
        try:
            predicate = Predicate.compile(text, trade)
        except FilterExpressionError:
            continue
        predicate(record)
        predicate(source.randbytes(source.randrange(trade.record_size + 1)))
