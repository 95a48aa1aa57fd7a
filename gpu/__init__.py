"""What is computed: a model's step over a paged KV pool. Knows no process, no socket and no HTTP."""
