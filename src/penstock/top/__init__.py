"""The display of `penstock top`: the nodes of a plant, their streams, losses and consumers, with rates.

`penstock top` only reads each node's pages (/health, /status, /metrics), so it needs no entitlements and has no effect
on the nodes.

    core/               no I/O: parses pages (reading), builds a picture from consecutive readings (watch, row by row in
                        rows), formats rows as cells (shown)
    live/               fetches the pages (fetching), and draws the picture (app, printed)
"""

from penstock.top.core.picture import Picture
from penstock.top.core.places import Place, place_given, places_of_plant
from penstock.top.core.reading import Reading
from penstock.top.core.watch import Watch
from penstock.top.live.fetching import fetch_all

__all__ = ["Picture", "Place", "Reading", "Watch", "fetch_all", "place_given", "places_of_plant"]
