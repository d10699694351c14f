"""`penstock feed` and its subcommands."""
