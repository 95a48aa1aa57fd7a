"""The models: one decoder that is parameterised by ModelConfig."""
