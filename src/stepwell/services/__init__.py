"""The HTTP side: what other programs reach Stepwell by."""
