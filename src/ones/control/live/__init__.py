"""The live engine: launches training processes, gives them orders and handles their reports."""
