"""The demo: a courier learns to deliver parcels in two to five minutes."""
