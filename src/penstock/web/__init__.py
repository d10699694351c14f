"""The console: a plant in the browser, and browsers as publishers and subscribers.

    core/               who may come in, who may see what, and the picture of the plant; no I/O
    guard               checks of every request
    watching            the nodes' pages, looked at again and again
    actions             what operators do, and the log of it
    gateway/            /ws/stream: each browser is a link of its own, with its user's own grants
    app, server         the HTTP side, and the process around it

docs/how-to/console.md says how it is used, docs/reference/protocol/console.md what is spoken.
"""
