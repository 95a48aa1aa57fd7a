"""Measures servers of one model side by side. Run by scripts/bench; nothing else imports it."""
