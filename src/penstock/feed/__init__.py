"""Feed adapters: source streams in, application messages out, an active adapter and its synchronised backups."""
