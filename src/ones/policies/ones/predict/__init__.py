"""What jobs will do: their remaining work, their speeds, and what a change costs."""
