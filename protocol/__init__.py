"""What the processes say to each other: typed messages, and the links that carry them."""
