"""PrimitiveSkill: a robot's hand that picks, places and pushes things on a table."""
