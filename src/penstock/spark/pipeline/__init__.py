"""The pipeline, from capture to audit: capture, normalise, archive, derive, audit; runner.py puts them together."""
