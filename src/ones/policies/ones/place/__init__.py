"""The search for the best schedule on real nodes, and the reasons of its changes."""
