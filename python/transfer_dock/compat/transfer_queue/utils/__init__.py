"""Helpers that programs of TransferQueue import."""
