"""The report as one HTML file: no network access, light and dark mode, readable on a phone."""

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from penstock.base.errors import ConfigurationError
from penstock.base.files import write_file
from penstock.spark.pipeline.audit.report import AuditReport
from penstock.spark.pipeline.audit.section import AuditSection, Plot, SectionResult, TextTable

WORDS = {"good": "as it should be", "bad": "look at this", "unknown": "nothing to say"}
HEADLINES = {"good": "Everything is as it should be", "bad": "Something is wrong", "unknown": "Nothing to audit"}
ROWS_SHOWN_MAX = 500

STYLE = """
:root { color-scheme: light dark; --text: #1c2227; --dim: #5d6870; --page: #f6f7f8; --card: #fff; --rule: #dfe3e6;
  --good: #1f8a4c; --bad: #c62f2f; --unknown: #98a2a9; --one: #2468b4; --two: #b4662a; --three: #6b4fb0;
  --four: #1b8a83 }
@media (prefers-color-scheme: dark) { :root { --text: #e3e7ea; --dim: #9aa5ad; --page: #14181b; --card: #1d2327;
  --rule: #333c42; --good: #4cc07d; --bad: #f07070; --unknown: #6d787f; --one: #6fa8e8; --two: #e0a06a;
  --three: #a893e6;
  --four: #5cc9c0 } }
* { box-sizing: border-box } body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1.2rem 1rem 3rem }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 0 }
h3 { font-size: .85rem; font-weight: 600; color: var(--dim); margin: 1.1rem 0 .3rem } p { margin: .3rem 0 }
.dim { color: var(--dim) } .verdict { border-left: .5rem solid var(--unknown); padding: .2rem 0 .2rem 1rem }
.verdict.good { border-color: var(--good) } .verdict.bad { border-color: var(--bad) }
ul.overview { list-style: none; margin: 1.2rem 0 0; padding: 0; display: grid; gap: .5rem;
  grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)) }
.overview a { display: block; height: 100%; background: var(--card); border: 1px solid var(--rule);
  border-top: .25rem solid var(--unknown); border-radius: .4rem; padding: .6rem .8rem; color: inherit;
  text-decoration: none }
.overview a.good { border-top-color: var(--good) } .overview a.bad { border-top-color: var(--bad) }
.overview strong { display: block } section { background: var(--card); border: 1px solid var(--rule);
  border-radius: .4rem; padding: 1rem 1.1rem; margin-top: 1rem }
.badge { font-size: .75rem; font-weight: 600; color: #fff; background: var(--unknown); border-radius: 1rem;
  padding: .1rem .6rem; margin-left: .5rem; white-space: nowrap } .badge.good { background: var(--good) }
.badge.bad { background: var(--bad) } @media (prefers-color-scheme: dark) { .badge { color: #10151a } }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .85rem;
  font-variant-numeric: tabular-nums } th, td { padding: .25rem .6rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--rule); white-space: nowrap } th { color: var(--dim); font-weight: 600 }
th:first-child, td:first-child { text-align: left; padding-left: 0 } td.long { white-space: normal; text-align: left;
  min-width: 14rem } tr.bad td { color: var(--bad); font-weight: 600 }
svg { display: block; width: 100%; height: auto; max-height: 15rem } svg text { font-size: 12px; fill: var(--dim) }
svg .grid { stroke: var(--rule) } svg .mark { fill: var(--one) } svg .good { fill: var(--good) }
svg .bad { fill: var(--bad) } svg .unknown { fill: var(--unknown) } svg .line { fill: none; stroke-width: 2.5 }
svg .line0 { stroke: var(--one) } svg .line1 { stroke: var(--two) } svg .line2 { stroke: var(--three) }
svg .line3 { stroke: var(--four) } svg .dot { stroke-width: 2 } svg .dot.line0 { fill: var(--one) }
@media (max-width: 40rem) { svg text { font-size: 22px } }
svg .dot.line1 { fill: var(--two) } svg .dot.line2 { fill: var(--three) } svg .dot.line3 { fill: var(--four) }
"""


def write_html(report: AuditReport, path: Path) -> None:
    try:
        write_file(path, page(report).encode())
    except OSError as error:
        raise ConfigurationError(f"cannot write the report: {error.strerror}", where=str(path)) from None


def page(report: AuditReport) -> str:
    when = datetime.fromtimestamp(report.audited_ns // 10**9, UTC)
    dates = report.dates[0] if len(report.dates) == 1 else f"{report.dates[0]} to {report.dates[-1]}"
    bad = [result.summary for _, result in report.sections if result.verdict == "bad"]
    lead = "".join(f"<p>{html.escape(_sentence(each))}</p>" for each in bad) or _good_news(report.sections)
    cards = "".join(_card(section, result) for section, result in report.sections)
    body = "".join(_section(section, result) for section, result in report.sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit of {html.escape(dates)}</title><style>{STYLE}</style></head><body><main>"
        f'<p class="dim">Audit of {html.escape(dates)} · {html.escape(report.archive)}</p>'
        f'<div class="verdict {report.verdict}"><h1>{_headline(report)}</h1>{lead}</div>'
        f'<ul class="overview">{cards}</ul>{body}'
        f'<p class="dim">Made by penstock pipeline audit, {when:%Y-%m-%d %H:%M:%S} UTC.</p></main></body></html>\n'
    )


def _headline(report: AuditReport) -> str:
    """Return the headline; good news is limited to the sections that had data."""
    unknown = sum(result.verdict == "unknown" for _, result in report.sections)
    if report.verdict == "good" and unknown:
        sections = len(report.sections)
        return f"{HEADLINES['good']}, as far as was recorded: {unknown} of {sections} sections have nothing to say"
    return HEADLINES[report.verdict]


def _good_news(sections: Sequence[tuple[AuditSection, SectionResult]]) -> str:
    first = [result.summary for _, result in sections if result.verdict == "good"][:2]
    return "".join(f"<p>{html.escape(_sentence(each))}</p>" for each in first)


def _card(section: AuditSection, result: SectionResult) -> str:
    return (
        f'<li><a class="{result.verdict}" href="#{html.escape(section.name)}">'
        f"<strong>{html.escape(section.title)}</strong>"
        f'<span class="dim">{html.escape(_sentence(result.summary))}</span></a></li>'
    )


def _section(section: AuditSection, result: SectionResult) -> str:
    blocks = "".join(_plot(each) if isinstance(each, Plot) else _table(each) for each in result.blocks)
    return (
        f'<section id="{html.escape(section.name)}"><h2>{html.escape(section.title)}'
        f'<span class="badge {result.verdict}">{WORDS[result.verdict]}</span></h2>'
        f"<p>{html.escape(_sentence(result.summary))}</p>{blocks}</section>"
    )


def _plot(plot: Plot) -> str:
    return f"<h3>{html.escape(plot.title)}</h3>{plot.svg}"


def _table(table: TextTable) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr{' class=bad' if number in table.bad else ''}>{''.join(map(_cell, row))}</tr>"
        for number, row in enumerate(table.rows[:ROWS_SHOWN_MAX])
    )
    more = len(table.rows) - ROWS_SHOWN_MAX
    rest = f'<p class="dim">and {more:,} more: the table audit has them</p>' if more > 0 else ""
    return (
        f'<h3>{html.escape(table.title)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{rest}"
    )


def _cell(text: str) -> str:
    return f"<td{' class=long' if len(text) > 40 else ''}>{html.escape(text)}</td>"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
