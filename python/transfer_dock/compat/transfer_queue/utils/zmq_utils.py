"""How to reach a dock, by the names of TransferQueue, which uses ZeroMQ."""

from __future__ import annotations

from typing import Any

from transfer_dock.compat.transfer_queue._server import Address as ZMQServerInfo

__all__ = ["ZMQServerInfo", "process_zmq_server_info"]


def process_zmq_server_info(handlers: dict[Any, Any] | Any) -> Any:
    """What ``get_zmq_server_info`` of an actor of Ray returns, or of each in a dictionary."""
    import ray

    if isinstance(handlers, dict):
        return {name: ray.get(handler.get_zmq_server_info.remote()) for name, handler in handlers.items()}
    return ray.get(handlers.get_zmq_server_info.remote())
