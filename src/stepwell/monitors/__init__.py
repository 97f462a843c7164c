"""Monitors of a run: console, `metrics.jsonl`, TensorBoard, W&B, Trackio, MLflow and the HTML report."""

from stepwell.monitors.base import EntryKind, LogEntry, Monitor, Monitors, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor, read_entries, rewind

__all__ = [
    "EntryKind",
    "JsonlMonitor",
    "LogEntry",
    "Monitor",
    "Monitors",
    "RunInfo",
    "read_entries",
    "rewind",
]
