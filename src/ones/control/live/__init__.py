"""The brain's body in real time: orders to training processes, launches, and what comes back."""
