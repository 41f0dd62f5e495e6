"""The kinds of faults that a seed chooses from."""

from __future__ import annotations

#: name -> what happens
KINDS = {
    "crash": "the controller ends at any use of clock, disk, launcher or inbox",
    "loss": "a request of a worker, or its answer, does not arrive",
    "duplicate": "a request arrives twice, the second time later",
    "delay": "requests take seconds, so that they overtake one another",
    "slow-disk": "commits take seconds",
    "full-disk": "commits fail for a while",
    "node-loss": "a node vanishes; it is fenced and returns later",
    "node-cut": "a node is out of reach for a while; its workers live",
    "worker-death": "a worker process is killed",
    "script-failure": "a script ends with an error",
    "slow-join": "a script takes long to join, or never does",
    "stranger": "another user's process comes to a GPU",
    "cancel": "users cancel jobs",
    "priority": "users change priorities",
    "drain": "operators drain nodes and GPUs",
    "clock": "the wall clock is set back while the controller is down",
    "hostile": "a job sends changed, repeated, oversized and random reports",
}
