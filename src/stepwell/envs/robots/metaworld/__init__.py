"""Meta-World: fifty tabletop tasks of a Sawyer arm, their scripted experts, and instructions in words."""
