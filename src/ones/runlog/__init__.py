"""Run logs: every event and every plan of a run, in order."""

from ones.runlog.encoding import VERSION, Entry, Header, decode, encode
from ones.runlog.files import LogWriter, RunLog
from ones.runlog.replay import Difference, Replay, replay
from ones.runlog.snapshots import SnapshottingLog, forget_snapshots, recover, tail_limit

__all__ = [
    "VERSION",
    "Difference",
    "Entry",
    "Header",
    "LogWriter",
    "Replay",
    "RunLog",
    "SnapshottingLog",
    "decode",
    "encode",
    "forget_snapshots",
    "recover",
    "replay",
    "tail_limit",
]
