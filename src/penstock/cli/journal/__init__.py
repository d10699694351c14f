"""`penstock journal` and its subcommands."""
