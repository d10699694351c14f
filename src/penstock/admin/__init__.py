"""The stream administration server: who may see what, and where it flows. No application message passes through it."""
