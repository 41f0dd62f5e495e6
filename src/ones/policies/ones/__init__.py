"""ONES: batch sizes and GPUs by online evolutionary search, after the SC'21 paper."""
