"""One blueprint per group of HTTP routes."""
