"""DL2 (2019): a learned policy gives GPUs one by one, slot by slot."""
