"""The display of `penstock top`: the nodes of a plant, their streams, losses and consumers, with rates.

`penstock top` only reads each node's pages (/health, /status, /metrics), so it needs no entitlements and has no effect
on the nodes. reading.py parses pages, watch.py builds a picture from consecutive readings (rows.py: row by row); both
do no I/O. fetching.py fetches the pages, shown.py formats rows as cells, printed.py and app.py draw them.
"""

from penstock.top.fetching import fetch_all
from penstock.top.picture import Picture
from penstock.top.places import Place, place_given, places_of_plant
from penstock.top.reading import Reading
from penstock.top.watch import Watch

__all__ = ["Picture", "Place", "Reading", "Watch", "fetch_all", "place_given", "places_of_plant"]
