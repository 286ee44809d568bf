"""Loggers of programs."""

from __future__ import annotations

import logging
import os


def get_logger(name: str | None, default_level: str = "WARNING") -> logging.Logger:
    """A logger of the level that the variable TQ_LOGGING_LEVEL names, which writes to stderr unless others handle it."""
    logger = logging.getLogger(name)
    logger.setLevel(os.environ.get("TQ_LOGGING_LEVEL", default_level))
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(name)s - %(message)s"))
        logger.addHandler(handler)
    return logger
