"""The first host is probed before a launch, and messages name its address and port."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_ldlm.core.errors import ConfigurationError, WorkerFailed
from mm_ldlm.distributed import launch, master


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_another_host_finds_the_first_one_that_listens(listener: socket.socket) -> None:
    master.probe(f"127.0.0.1:{listener.getsockname()[1]}", node_rank=1, seconds=5)
    listener.settimeout(5)
    connection, (address, _) = listener.accept()
    connection.close()
    assert address == "127.0.0.1", "the probe connected"


def test_another_host_waits_for_the_first_one(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()

    def start() -> None:
        time.sleep(0.4)
        with socket.create_server(("127.0.0.1", port)) as server:
            server.accept()[0].close()

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    with caplog.at_level(logging.INFO):
        master.probe(f"127.0.0.1:{port}", node_rank=1, seconds=60, every=0.1)
    thread.join(timeout=30)
    assert f"waiting up to 60 s for the first host at 127.0.0.1, port {port} (Connection refused)" in caplog.text


def test_a_first_host_that_does_not_answer_is_named_with_address_port_and_reason() -> None:
    port = free_port()
    words = rf"does not answer at 127\.0\.0\.1, port {port}, within 0\.2 s \(Connection refused\).*MASTER_PORT"
    with pytest.raises(WorkerFailed, match=words) as raised:
        master.probe(f"127.0.0.1:{port}", node_rank=1, seconds=0.2, every=0.05)
    assert len(str(raised.value).splitlines()) == 1


def test_an_unknown_name_is_refused_at_once() -> None:
    with pytest.raises(WorkerFailed, match=r"found 'no-such-host\.invalid' \(port 29400\), which this host cannot"):
        master.probe("no-such-host.invalid:29400", node_rank=1, seconds=300)


@pytest.mark.parametrize("endpoint", ["head", "head:", "head:x", ":29400", "head:99999", "head:0", ""])
def test_an_endpoint_without_host_or_port_is_refused(endpoint: str) -> None:
    with pytest.raises(WorkerFailed, match="expected the first host as HOST:PORT"):
        master.probe(endpoint, node_rank=1, seconds=300)


def test_the_first_host_refuses_a_port_that_is_taken(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(WorkerFailed, match=rf"port {port} of this host.*Address already in use.*MASTER_PORT"):
        master.probe(f"127.0.0.1:{port}", node_rank=0, seconds=5)
    master.probe(f"127.0.0.1:{free_port()}", node_rank=0, seconds=5)


def test_a_first_host_with_the_address_of_another_is_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(master.interfaces, "interface_of", lambda address: None)
    master.probe(f"127.0.0.1:{free_port()}", node_rank=0, seconds=5)
    assert "127.0.0.1 is not an address of it" in caplog.text


def test_the_launcher_probes_before_it_starts_anything(tmp_path: Path) -> None:
    port = free_port()
    config = launch.LaunchConfig(nodes=2, rendezvous=f"127.0.0.1:{port}", node_rank=1, join_timeout=1, job="j")
    with pytest.raises(WorkerFailed, match=f"does not answer at 127.0.0.1, port {port}"):
        launch.launch("none", [], config=config, log_directory=tmp_path / "logs")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"nodes": 2, "rendezvous": "head:29400"},
            r"number of this host among 2 in NODE_RANK .*, found none",
        ),
        ({"nodes": 2, "node_rank": 1}, "address of the first of 2 hosts, found none. Set MASTER_ADDR and MASTER_PORT"),
        ({"nodes": 1, "node_rank": 1}, r"expected several hosts, found number 1 \(NODE_RANK\) of one host"),
    ],
)
def test_hosts_that_cannot_meet_are_refused_before_anything_is_written(
    settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    config = launch.LaunchConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=words):
        launch.launch("none", [], config=config, log_directory=tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_the_number_of_a_host_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "head")
    found = launch.with_environment(launch.RanksConfig(nodes=3, processes=4, max_restarts=2))
    assert found == launch.LaunchConfig(nodes=3, processes=4, max_restarts=2, node_rank=1, rendezvous="head:29400")
