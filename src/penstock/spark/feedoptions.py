"""What can be said about a recorded feed that is read, in Python or as options of the format `penstock-feed`."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from penstock.base.calendar import locate
from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.base.extensions import absolute_modules
from penstock.feed.recorded.files import FileFormat
from penstock.model import MessageModel
from penstock.spark.feedindex import Progress, plan_slices
from penstock.spark.feedslices import Conversion, FeedOptions, FeedSlice, check_models

WHERE = "format penstock-feed"

STREAM_MAX = 2**31 - 1


class FeedSourceOptions(Config, frozen=True):
    """Options; docs/how-to/spark-feeds.md describes each."""

    path: tuple[str, ...] = ()
    rows: Literal["messages", "source", "bad", "slices"] = "messages"
    format: FileFormat | None = None
    framing: str = ""
    destinations: tuple[str, ...] = ()
    header: bool = False
    table: str = ""
    venue: str = ""
    prefix: str = ""
    quantity_decimals: Literal[0, 8] | None = None
    calendar: str = ""
    modules: tuple[str, ...] = ()
    date: str = ""
    stream: Annotated[int, msgspec.Meta(ge=0, le=STREAM_MAX)] = 1
    model: str = ""
    columns: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    condition: str = ""
    bad: Literal["skip", "fail"] = "skip"
    cache: str = ""
    cores: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 0
    slice_size: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def conversion(self) -> Conversion | None:
        if not self.table:
            return None
        return Conversion(
            self.table,
            self.stream,
            self.date,
            venue=self.venue,
            prefix=self.prefix,
            quantity_decimals=self.quantity_decimals,
            calendar=locate(self.calendar, Path()),
            modules=absolute_modules(self.modules),
        )

    def checked_model(self) -> MessageModel | None:
        """The model of the rows; None: all models, or no conversion at all."""
        if self.rows == "source":
            for name in (
                "table",
                "venue",
                "prefix",
                "quantity_decimals",
                "calendar",
                "model",
                "date",
                "topics",
                "condition",
            ):
                if getattr(self, name):
                    raise ConfigurationError(
                        "source messages are not converted", where=f"{WHERE}: option {name}", hint="rows=messages is"
                    )
            return None
        conversion = self.conversion
        if conversion is None:
            raise ConfigurationError(
                "no converter table is told", where=f"{WHERE}: option table", hint="itch, iex-deep, or a TOML file"
            )
        _, plan = conversion.load()
        if not self.model:
            return None
        check_models([self.model], plan)
        return next(output.model for output in plan.outputs if output.model.name == self.model)

    def files(self) -> list[Path]:
        """The files that the paths name, patterns among them, in order."""
        found: list[Path] = []
        for each in self.path:
            path = Path(each)
            matches = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(each))]
            found += sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else matches
            if not matches:
                raise ConfigurationError("there is no such file", where=f"{WHERE}: {each}")
        if not found:
            raise ConfigurationError("no file is named", where=f"{WHERE}: option path")
        return found

    def slices(self, progress: Progress | None = None) -> list[FeedSlice]:
        """Of all files, each a source stream of its own; indexes are made where they are missing."""
        files = self.files()
        modules = absolute_modules(self.modules)
        reading = FeedOptions(self.format, self.framing, self.destinations, self.header, modules)
        return [
            piece
            for path, conversion in zip(files, self._conversions(files), strict=True)
            for piece in plan_slices(
                path,
                options=reading,
                conversion=conversion,
                cores=self.cores or None,
                slice_size=self.slice_size or None,
                cache=Path(self.cache) if self.cache else None,
                progress=progress,
            )
        ]

    def _conversions(self, files: list[Path]) -> list[Conversion | None]:
        """Of each file: its own date, and the stream behind that of the file before."""
        conversion = self.conversion
        if self.rows == "source" or conversion is None:
            return [None] * len(files)
        dates = self.date.split(",") if self.date else [""] * len(files)
        if len(dates) != len(files):
            raise ConfigurationError(
                f"{len(dates)} {'date is' if len(dates) == 1 else 'dates are'} told for {len(files)} files",
                where=f"{WHERE}: option date",
                hint="give one date for each file, with commas, or none: each file's is then looked for in it",
            )
        return [
            msgspec.structs.replace(conversion, stream_id=self.stream + number, trading_date=day.strip()).dated(path)
            for number, (path, day) in enumerate(zip(files, dates, strict=True))
        ]
