"""Who does it: supervised processes. `app` may import `actors.handles` and nothing else of this package."""
