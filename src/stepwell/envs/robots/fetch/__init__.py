"""Gymnasium-Robotics' Fetch arm: reach, push, slide, pick and place, with scripted experts."""
