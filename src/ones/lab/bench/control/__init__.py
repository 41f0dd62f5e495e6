"""`ones bench control`: what the service costs and how long its users wait."""
