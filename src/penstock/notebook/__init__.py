"""Live views for Jupyter: a table and a chart that follow a subscription or the records of a node.

    from penstock.notebook import LiveChart, LiveTable

    LiveTable(client.subscribe("md.us.eq.*.quote"), fields=["bid_price", "ask_price"])
    LiveChart(client.records("md.us.eq.*.quote"), "bid_price")

The extra `notebook` installs the packages: pip install 'penstock[notebook]'. Read widgets.py first; views.py has the
rows and points that a widget shows, and follower.py the thread that reads the messages.
"""

from penstock.capture.live.frames import require

require("anywidget", extra="notebook")

from penstock.notebook.widgets import LiveChart, LiveTable  # noqa: E402 - the package is there

__all__ = ["LiveChart", "LiveTable"]
