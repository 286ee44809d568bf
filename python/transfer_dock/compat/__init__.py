"""Interfaces of other experience data systems, on a dock: coming from one of them, you change one import."""
