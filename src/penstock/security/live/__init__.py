"""Access to the administration server and the disk: clients, watches, and the state that checks tokens and keys.
client.py has the client of the server's API over http.py. own_token.py and token_watch.py keep tokens up to date, and
authentication_watch.py keeps keys up to date; gate.py and authentication_state.py store on the disk the state with
which nodes check."""
