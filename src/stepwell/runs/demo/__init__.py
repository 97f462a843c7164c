"""The demo: a courier learns to deliver parcels in about five minutes."""
