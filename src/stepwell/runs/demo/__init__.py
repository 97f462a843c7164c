"""The demo: a courier learns to deliver parcels in five to ten minutes."""
