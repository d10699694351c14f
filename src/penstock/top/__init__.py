"""What `penstock top` shows: the nodes of a plant, their streams, losses and consumers, with rates.

It reads each node's pages (/health, /status, /metrics) and nothing else, so it needs no rights and disturbs nobody.
reading.py understands pages, watch.py makes a picture of readings that follow each other (rows.py: row by row); both do
no I/O. fetching.py asks nodes, shown.py makes cells of rows, printed.py and app.py draw them.
"""

from penstock.top.fetching import fetch_all
from penstock.top.picture import Picture
from penstock.top.places import Place, place_given, places_of_plant
from penstock.top.reading import Reading
from penstock.top.watch import Watch

__all__ = ["Picture", "Place", "Reading", "Watch", "fetch_all", "place_given", "places_of_plant"]
