"""What several policies share: packing workers onto nodes, later also speed models."""
