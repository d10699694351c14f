"""`penstock pipeline plan`: assign topics to multicast groups."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from rich.console import Console

from penstock.cli.common.tabular import tabular

if TYPE_CHECKING:
    from penstock.spark.pipeline.plan import Plan

By: TypeAlias = Literal["messages", "bytes"]

SHOWN_MAX = 10


def plan(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="The archive's directory.")],
    interests: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The interests: TOML or JSON by host, or a server's audit log."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The output file of the map.")] = Path("groups.toml"),
    groups: Annotated[int, typer.Option(min=1, max=4096, help="Maximum number of groups in the map.")] = 64,
    first_group: Annotated[
        str, typer.Option(help="The first group; the others have the following addresses.")
    ] = "239.255.80.0",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="UDP port of all groups.")] = 7401,
    by: Annotated[By, typer.Option(help="The unit of waste to minimise.")] = "messages",
    date: Annotated[list[str] | None, typer.Option(help="Only this date's traffic; may be repeated.")] = None,
    display_rate: Annotated[
        int, typer.Option(min=1, help="Updates per second of a topic that a display shows, for the metering advice.")
    ] = 4,
    master: Annotated[str | None, typer.Option(help="Spark master. Default: this machine.")] = None,
) -> None:
    """Compute the map of topics to groups with the least waste, from recorded traffic and interests, and show the
    waste.

    Waste is traffic that a host receives but does not want, because it shares a group with a topic that the host
    wants.
    """
    from penstock.spark import session
    from penstock.spark.pipeline.archive.archive import Archive
    from penstock.spark.pipeline.hosts import read_hosts
    from penstock.spark.pipeline.plan import plan as make_plan
    from penstock.spark.pipeline.plan import recorded_traffic

    hosts = read_hosts(interests)
    opened = Archive.open(archive)
    console = Console(stderr=True, highlight=False)
    with console.status("starting Spark") as status:
        spark = session(master, app="penstock-plan")
        rows = sum(info.rows for info in opened.tables())
        status.update(f"counting recorded messages: {rows:,} rows")
        traffic = recorded_traffic(spark, opened, dates=date, display_rate=display_rate)
        status.update(f"assigning {len(traffic):,} topics of {len(hosts):,} hosts to {groups:,} groups")
        planned = make_plan(traffic, hosts, groups_max=groups, first_group=first_group, port=port, by=by)
    planned.groups.save(out)
    typer.echo(f"{len(traffic):,} topics, {len(hosts):,} hosts, {planned.unwanted:,} topics that nobody wants\n")
    _show_waste(planned, by)
    _show_metering(planned, display_rate)
    typer.echo(f"\n{out}: {len(planned.groups.groups):,} groups; for penstock pub --map and penstock sub --map")


def _show_waste(planned: "Plan", by: str) -> None:
    rows: list[tuple[str, ...]] = [("", "groups", f"{by} delivered", "wanted", "wasted", "share")]
    for each in planned.waste:
        numbers = (f"{number:,}" for number in (each.groups, each.delivered, each.wanted, each.wasted))
        rows.append((each.name, *numbers, f"{each.share:.1%}"))
    typer.echo(tabular(rows))


def _show_metering(planned: "Plan", display_rate: int) -> None:
    if not planned.metering:
        typer.echo(f"\nno topic has more than {display_rate} messages in a second: nothing to meter")
        return
    typer.echo(f"\nto a display that shows {display_rate} updates per second, the topics that could be metered most:")
    rows = [("topic", "messages", "per second", "peak", "not needed")]
    for each in planned.metering[:SHOWN_MAX]:
        rate = each.messages / max(each.seconds, 1)
        share = each.beyond / each.messages
        rows.append((each.topic, f"{each.messages:,}", f"{rate:,.1f}", f"{each.peak:,}", f"{share:.0%}"))
    typer.echo(tabular(rows))
    if len(planned.metering) > SHOWN_MAX:
        typer.echo(f"and {len(planned.metering) - SHOWN_MAX:,} more")
