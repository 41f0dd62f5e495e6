"""`ones bench fidelity`: the same paced jobs live and simulated."""
