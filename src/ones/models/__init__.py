"""Models that several policies share: packing, sharing, speed, goodput, exact allocation."""
