"""The rank actor: computes a part of a model for its engine, whose process leads."""
