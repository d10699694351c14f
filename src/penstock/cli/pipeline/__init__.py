"""`penstock pipeline` and its subcommands."""
