"""The output actor: token ids in; text, stop strings and log-probabilities out."""
