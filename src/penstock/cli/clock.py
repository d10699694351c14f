"""`penstock clock`: measure the offset between the clocks of two hosts, on which latencies between them depend."""

import asyncio
import sys
from typing import Annotated

import msgspec
import typer

from penstock.base.errors import ConfigurationError
from penstock.net.core.clock import ClockEstimate
from penstock.net.live.clock_driver import ClockClient, ClockServer
from penstock.net.live.event_loop import run_agent

DEFAULT_PORT = 7_411

app = typer.Typer(help="Measure the offset between the clocks of two hosts.", no_args_is_help=True)


@app.command("serve")
def serve(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="UDP port; 0: any free port.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other hosts need an address other than loopback.")
    ] = ("127.0.0.1"),
) -> None:
    """Answer `penstock clock check` until Ctrl-C."""

    async def main(stop: asyncio.Event) -> None:
        async with ClockServer(host=host, port=port) as server:
            typer.echo(f"answering on {host}:{server.port}, stop with Ctrl-C")
            sys.stdout.flush()
            await stop.wait()

    raise typer.Exit(run_agent(main, name="clock"))


@app.command("check")
def check(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of `penstock clock serve`.")],
    exchanges: Annotated[int, typer.Option(min=1, max=1_000, help="Number of exchanges.")] = 16,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Measure the offset of another host's clock, with an error bound."""
    estimate = compare_clocks(address, exchanges)
    typer.echo(msgspec.json.encode(estimate) if json else _text(address, estimate))


def compare_clocks(address: str, exchanges: int) -> ClockEstimate:
    """Measure the offset of the clock at an address with this number of exchanges."""
    host, port = parse_address(address)

    async def measure() -> ClockEstimate:
        async with ClockClient(host, port) as client:
            return await client.measure(exchanges)

    return asyncio.run(measure())


def parse_address(address: str) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ConfigurationError(f"{address!r} is not an address", hint="write HOST:PORT, as in 10.0.0.3:7411")
    return host, int(port)


def _text(address: str, estimate: ClockEstimate) -> str:
    direction = "ahead" if estimate.offset_ns >= 0 else "behind"
    return (
        f"{address} is {abs(estimate.offset_ns) / 1_000:,.1f} µs {direction} of this clock, "
        f"± {estimate.error_ns / 1_000:,.1f} µs\n"
        f"fastest of {estimate.samples} round trips {estimate.round_trip_ns / 1_000:,.1f} µs"
    )
