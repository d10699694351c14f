"""Compiled only: see _steps.pxd."""
