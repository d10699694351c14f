"""`penstock agent` and its subcommands."""
