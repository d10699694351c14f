"""`penstock sub`: show messages from a channel, a filter module, a node, a tree, or a subscription."""

from collections.abc import Callable
from typing import get_args

from penstock.base.errors import ConfigurationError
from penstock.cli.common.options import takes_options
from penstock.cli.sub.options import SubOptions
from penstock.filter.core.control import Wish


@takes_options(SubOptions)
def sub(options: SubOptions) -> None:
    """Show messages and losses in order. Ctrl-C ends the command with a summary."""
    if options.json and options.quiet:
        raise ConfigurationError("--json and --quiet exclude each other")
    if options.delivery not in get_args(Wish):
        raise ConfigurationError(f"{options.delivery!r} is not a delivery", hint="use unicast, ring or shared")
    source_of(options)(options)


def source_of(options: SubOptions) -> Callable[[SubOptions], None]:
    """Return the function for the source that the options select. Only its modules are imported."""
    if options.agent:
        from penstock.cli.sub.tree import show_stream

        return show_stream
    if options.node is not None or options.records or options.metered is not None:
        from penstock.cli.sub.node import show_node

        return show_node
    if options.connect is not None:
        from penstock.cli.sub.connected import show_subscription

        return show_subscription
    from penstock.cli.sub.channel import show_channel

    return show_channel
