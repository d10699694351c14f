"""A small plant on this machine: one process that publishes made-up quotes, some that subscribe, one that watches them.

    generator     quotes of symbols that wander, the same for the same seed
    publisher     sends them on time; what is late is late by the schedule, not by when it was sent
    subscriber    measures how late
    plant         starts the processes, gathers their reports, ends them

Read plant.py first. Nothing here is needed to use Penstock; it shows how it is used.
"""

from penstock.demo.generator import TickGenerator
from penstock.demo.plant import DemoPlant, Member
from penstock.demo.reports import DemoOptions, PublisherReport, Report, SubscriberReport
from penstock.demo.schedule import Schedule

__all__ = [
    "DemoOptions",
    "DemoPlant",
    "Member",
    "PublisherReport",
    "Report",
    "Schedule",
    "SubscriberReport",
    "TickGenerator",
]
