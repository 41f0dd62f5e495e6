"""The live service: the same scheduler in real time, its store, its HTTP interface."""
