"""`ones bench embed`: our policies in a simulator with laws of its own."""
