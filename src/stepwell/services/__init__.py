"""The HTTP side: how other programs reach Stepwell."""
