"""`ones bench search`: speed and quality of the evolutionary search."""
