"""What several commands share: options, output, and running a node in the foreground."""
