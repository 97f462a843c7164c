"""Messages to exact token ids."""
