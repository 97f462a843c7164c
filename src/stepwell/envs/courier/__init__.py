"""Courier: fetch a parcel and bring it to a door."""
