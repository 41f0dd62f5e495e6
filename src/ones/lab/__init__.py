"""What needs several bodies: whole runs with their results, benchmarks, demonstrations."""
