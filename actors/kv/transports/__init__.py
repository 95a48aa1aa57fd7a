"""How the bytes of blocks come from the frames of one connector into those of another."""
