"""Shared parts of commands: options, output, and running a node in the foreground."""
