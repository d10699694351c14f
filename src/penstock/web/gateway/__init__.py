"""/ws/stream: browsers publish and subscribe, each with its user's own grants.

core/               no I/O: requests and replies (docs/reference/protocol/console.md), the bounded outbox of a browser,
                    and messages as browsers read and write them
source, feed        the origin of messages: subscriptions of the gateway, and the feeds of a plant
session             one WebSocket
"""
