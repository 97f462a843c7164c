"""The live view: a local page over run folders and pools, live or finished (`stepwell view`)."""
