"""Docks as actors of Ray."""

from __future__ import annotations

from typing import Any

# How many seconds a read waits for cells, unless told otherwise.
TIMEOUT = 300.0


class Actor:
    """Makes a class what the original's is: an actor of Ray by ``remote``, which serves many workers at once."""

    @classmethod
    def remote(cls, *args: Any, **kwargs: Any) -> Any:
        """An actor with such a dock: its handle."""
        return cls.options().remote(*args, **kwargs)

    @classmethod
    def options(cls, **options: Any) -> Any:
        """The class as an actor with these options of Ray, such as num_cpus; ``remote`` makes one."""
        import ray

        return ray.remote(**{"max_concurrency": 100, **options})(cls)
