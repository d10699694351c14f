"""The console: a plant in the browser, and browsers as publishers and subscribers.

    core/               sessions, the data that each role may see, and the picture of the plant; no I/O
    guard               checks of every request
    watching            polls the nodes' pages
    actions             actions of operators, and their log
    gateway/            /ws/stream: each browser has a link of its own, with its user's grants
    app, server         the HTTP side, and the process around it

docs/how-to/console.md describes its use, docs/reference/protocol/console.md its protocol.
"""
