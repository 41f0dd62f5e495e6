"""The training jobs of `ones doctor --gpu`: what they train, what they note, how they fail.

`case` is what both sides know; it needs no torch. `script` runs in the workers.
"""
