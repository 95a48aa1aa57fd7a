"""The pieces of a layer: plain classes over tensors that know shapes and nothing of batches, slots or ranks."""
