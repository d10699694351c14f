"""What a table does, in words: for `penstock convert check`."""

from collections.abc import Iterator
from typing import Any

from penstock.convert.core.expression import parse_condition, parse_value
from penstock.convert.core.format import SourceMessage
from penstock.convert.core.plan import steps_by_message
from penstock.convert.core.targets import VERBS
from penstock.convert.table import ConverterTable
from penstock.model import shipped, shipped_names


def explain(table: ConverterTable) -> Iterator[str]:
    """Lines of text. The table is compiled first: what is wrong with it is an error."""
    plan = table.compile()
    document = table.document
    source = table.format
    yield f"{document.name}: {document.description or 'no description'}"
    yield f"format {source.name} ({source.layout}, {len(source.messages)} messages), {len(plan.topics)} topics"
    yield ""
    ignored = []
    for name, steps in steps_by_message(document, source, table.where).items():
        if not steps:
            ignored.append(name)
            continue
        yield _title(source.messages[name])
        for number, (_, step) in enumerate(steps, start=1):
            yield from _step(table, step, number, source.messages[name])
        yield ""
    if document.image:
        yield "image, for those who come late"
        for number, step in enumerate(document.image, start=1):
            yield from _step(table, step, number, None)
        yield ""
    if ignored:
        yield f"taken, but not converted: {', '.join(ignored)}"


def _title(message: SourceMessage) -> str:
    kind = "" if message.key is None else f" {message.key.decode('ascii', 'backslashreplace')}"
    if message.columns:
        return f"{message.name}{kind}: {message.columns} columns"
    bound = "" if message.size_min == message.size_max else "at least "
    return f"{message.name}{kind}: {bound}{message.size_min} bytes"


def _step(table: ConverterTable, step: dict[str, Any], number: int, message: SourceMessage | None) -> Iterator[str]:
    when = ""
    if "when" in step:
        when = f", when {' and '.join(each.text for each in parse_condition(step['when'], ''))}"
    given = {key: value for key, value in step.items() if key not in ("do", "emit", "forward", "when")}
    if "do" in step:
        yield f"  {number}. {step['do']}{when}: {VERBS[step['do']].what}"
    elif "emit" in step:
        output = table.document.output[step["emit"]]
        yield f"  {number}. emit {output.model} on {output.topic}{when}"
        given = {**output.fields, **given}
    else:
        yield f"  {number}. forward{when}: the message is an application message"
    width = max((len(key) for key in given), default=0)
    for key, value in given.items():
        yield f"       {key:{width}} = {_origin(value, message)}"
    if "emit" in step:
        yield from _blank(table.document.output[step["emit"]].model, given)


def _origin(value: object, message: SourceMessage | None) -> str:
    expression = parse_value(value, "")
    head = expression.head.text
    if message is not None and head in message.fields:
        source = message.fields[head]
        decimals = f", {source.decimals} decimals" if source.decimals else ""
        head = f"{head} [{source.place} {source.kind}{decimals}]"
    return " -> ".join([head, *(call.text for call in expression.functions)])


def _blank(model: str, given: dict[str, Any]) -> Iterator[str]:
    """Fields that nobody gives, and that have no way to say so."""
    if model in shipped_names():
        left = [each.name for each in shipped(model).fields if not each.optional and each.name not in given]
        if left:
            yield f"       zero or empty: {', '.join(left)}"
