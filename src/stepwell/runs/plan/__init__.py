"""What a run will do and need, computed without training anything."""
