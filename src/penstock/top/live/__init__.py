"""Fetching the pages of nodes, and drawing the picture in a terminal."""
