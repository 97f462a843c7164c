"""The demo: a courier learns to deliver parcels in about six minutes, beside imitation."""
