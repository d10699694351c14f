"""Compiled code that runs a plan: source messages in, application messages out, one by one or in batches."""
