"""Outcome models: trained on labelled roll-outs, measured, and used to judge others."""
