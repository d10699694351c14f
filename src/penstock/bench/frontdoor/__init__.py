"""The public API, used like in the README; peers in the same run."""
