"""The connection to a node, which applications and downstream nodes share."""
