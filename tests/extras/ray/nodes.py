"""A Ray cluster of two nodes on loopback, for slow tests: 127.0.0.2, the head, and 127.0.0.3.

Ray replaces 127.0.0.1 by an address of the machine's network, so that address is not used.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def two_nodes() -> Iterator[Any]:
    """Start the nodes, with one CPU each; yield the cluster (`address`, `head_node`, `add_node`, `remove_node`)."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default: beside other work, a task would hardly run
    from ray.cluster_utils import Cluster

    sizes = {"num_cpus": 1, "object_store_memory": 150_000_000}
    cluster = Cluster(
        initialize_head=True, head_node_args={**sizes, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    )
    try:
        add_second_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()


def add_second_node(cluster: Any) -> Any:
    """Start the node 127.0.0.3."""
    return cluster.add_node(num_cpus=1, object_store_memory=150_000_000, node_ip_address="127.0.0.3")


def second_node(cluster: Any) -> Any:
    """Return the node 127.0.0.3 if it runs, else None."""
    return next((node for node in cluster.worker_nodes if node.node_ip_address == "127.0.0.3"), None)
