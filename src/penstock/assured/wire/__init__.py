"""The wire format between clients and message routers: data frames (frames.py, _layout.pxd), control messages
(control.py). docs/reference/protocol/assured.md describes it."""
