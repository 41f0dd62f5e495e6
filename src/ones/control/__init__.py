"""The live service: the scheduler in real time, its database and its HTTP API."""
