"""DRL: a learned policy after Chic that resizes one job at a time and preempts none."""
