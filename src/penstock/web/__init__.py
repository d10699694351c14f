"""The console: a plant in the browser, and browsers as publishers and subscribers.

    core/               no I/O: who may see what, and the picture of the plant
    live/               sessions of browsers, checks of every request (guard), the nodes' pages (watching), what
                        operators do (actions), HTTP (app), and the process around it (server)
    gateway/            /ws/stream: each browser is a link of its own, with its user's own grants

docs/how-to/console.md says how it is used, docs/reference/protocol/console.md what is spoken.
"""
