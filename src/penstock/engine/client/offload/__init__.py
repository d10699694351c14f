"""Offload processes: a separate process does a consumer's work, and the application keeps a thin layer."""

from penstock.engine.client.offload.sources import offloaded_events, offloaded_records

__all__ = ["offloaded_events", "offloaded_records"]
