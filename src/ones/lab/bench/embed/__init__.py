"""`ones bench embed`: our policies in a second, independent simulator."""
