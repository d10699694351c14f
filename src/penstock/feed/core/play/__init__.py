"""Simulated exchange: generator.py generates a day, script.py and pace.py decide when messages are due,
mold_server.py numbers them and answers requests. The sockets are in feed/live (mold_player.py, soup_player.py)."""
