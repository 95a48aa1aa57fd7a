"""API servers as actors, where there are several on one listening socket: the supervisor's side, and their own."""
