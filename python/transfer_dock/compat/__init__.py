"""Interfaces of other experience data systems, on a dock: coming from one of them, you change one import.

``python -m transfer_dock.compat`` prints a folder for PYTHONPATH in which they have their own names, so that programs need
not be edited: ``import transfer_queue`` is ``transfer_dock.compat.transfer_queue`` then.
"""
