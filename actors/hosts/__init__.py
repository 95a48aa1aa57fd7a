"""One engine's ranks on several hosts: the host that leads, and those that keep ranks for it."""
