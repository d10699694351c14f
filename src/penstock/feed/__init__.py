"""Feed adapters: source streams in, application messages out, an active adapter and its synchronised backups."""

from penstock.feed.config import LineConfig
from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.feed.lines import LineArbiter

__all__ = ["GeneratorConfig", "ItchGenerator", "LineArbiter", "LineConfig"]
