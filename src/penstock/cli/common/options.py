"""A command whose options are the fields of a class: each option is declared once, with its type, default and help."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Options = TypeVar("Options")


def takes_options(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Decorate a function of one argument, a dataclass whose fields have typer annotations."""

    def decorate(run: Callable[[Options], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            run(options(**values))

        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]
        command.__annotations__ = dict(inspect.get_annotations(options))
        return command

    return decorate
