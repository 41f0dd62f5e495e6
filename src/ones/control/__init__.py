"""The live service: the same brain in real time, its store, its HTTP interface."""
