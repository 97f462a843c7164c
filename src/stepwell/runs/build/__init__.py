"""From settings to components: who plays, who samples, who learns, and on which workers."""
