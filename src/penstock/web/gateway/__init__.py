"""/ws/stream: browsers publish and subscribe, each with its user's own grants.

requests, replies   what is said (docs/reference/protocol/console.md); no I/O
outbox              what waits for a browser, bounded, whatever the browser does; no I/O
fields              messages as browsers read and write them; no I/O
source, feed        where messages come from: what a subscription is to the gateway, and the feeds of a plant
session             one WebSocket
"""
