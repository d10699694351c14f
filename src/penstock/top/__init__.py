"""What `penstock top` shows: the nodes of a plant, their streams and consumers, with rates.

It asks each node's page (/status, /metrics, /health) and nothing else, so it needs no rights and disturbs nobody. Read
picture.py first: it makes everything that is shown of two readings. reading.py fetches, app.py draws.
"""

from penstock.top.picture import Picture, picture_of
from penstock.top.places import Place, places_of_plant
from penstock.top.reading import Reading, read_all

__all__ = ["Picture", "Place", "Reading", "picture_of", "places_of_plant", "read_all"]
