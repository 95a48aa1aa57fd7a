"""What it costs to move keys and values, and when that pays: `scripts/bench kv`."""
