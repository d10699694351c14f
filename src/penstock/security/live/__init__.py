"""What reaches the administration server or the disk: clients, watches, and the state that checks tokens and keys.

client.py is the way in: the server's API over http.py. own_token.py and token_watch.py keep tokens up to date, and
authentication_watch.py keeps keys; gate.py and authentication_state.py keep on the disk what nodes check with.
"""
