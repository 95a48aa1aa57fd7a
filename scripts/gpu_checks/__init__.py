"""scripts/gpu_check: numerics against float64, and step times against the card's own speed."""
