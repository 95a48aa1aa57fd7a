"""One model computed by several processes: the engine's own, which leads, and those that follow it."""
