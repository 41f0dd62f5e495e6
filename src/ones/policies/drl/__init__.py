"""DRL: a learned policy in the manner of Chic, one job re-sized at a time, nobody preempted."""
