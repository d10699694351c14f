"""Recorded feeds: files of messages, captures of a network, text.

files.py reads them as source streams, dates.py finds their trading date, conversion.py converts them as an adapter
does, inspect.py reports what is in them, tape.py stores a source stream so that it can be read from many positions.
"""
