"""SVG reconstruction: write the code of the icon that is shown."""
