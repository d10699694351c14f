"""The console: a plant in the browser, and browsers as publishers and subscribers.

    core/               the data that each role may see, and the picture of the plant; no I/O
    live/               sessions of browsers, checks of every request (guard), polls of the nodes' pages (watching),
                        actions of operators and their log (actions), HTTP (app), and the process (server)
    gateway/            /ws/stream: each browser has a link of its own, with its user's grants

docs/how-to/console.md describes its use, docs/reference/protocol/console.md its protocol.
"""
