"""What workers use of their slots: samples of nodes, curves, idle GPUs and slow workers.

All of it is in memory and only shown: a restart of the controller loses it. Warnings are events.
"""
