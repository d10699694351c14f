"""An exchange, played: generator.py makes a day up, script.py and pace.py say which messages are due, mold_server.py
numbers them and answers requests. The sockets are in feed/live (mold_player.py, soup_player.py)."""
