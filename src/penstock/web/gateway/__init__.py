"""/ws/stream: browsers publish and subscribe, each with its user's own grants.

core/               no I/O: requests and replies (docs/reference/protocol/console.md), the bounded outbox of a browser,
                    and messages as browsers read and write them
live/               one WebSocket (session), and the origin of its messages (source): trees and feeds of a plant
"""
