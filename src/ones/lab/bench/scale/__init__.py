"""`ones bench scale`: one controller with thousands of workers."""
