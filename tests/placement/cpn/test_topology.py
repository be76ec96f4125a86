"""Topologies are checked as a whole, addressed by name and read again when they change."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest
import yaml

from placement.cpn.topology import Source, read
from tests.placement.cpn.conftest import topology_text
from wire.errors import ConfigError

SMALL = """
datacenters:
  - name: east
    clusters:
      - name: a
        context: a
        nodes: [{name: n1, cpu_cores: 8, mem_gib: 64, cards: [{type: A100, mem_gib: 40, count: 2}]}]
      - {name: b, context: b, nodes: [{name: n1, cpu_cores: 8, mem_gib: 64, cards: [{type: P100, mem_gib: 16}]}]}
  - {name: store}
links: [{from: store, to: east, bandwidth_mb_s: 50}]
"""


def test_cards_and_nodes_have_names_that_do_not_depend_on_their_place_in_a_list() -> None:
    network = read(SMALL, "test")
    assert list(network.cards) == ["a/n1/gpu0", "a/n1/gpu1", "b/n1/gpu0"]
    assert network.table.nodes == ("a/n1", "b/n1")
    turned = yaml.safe_load(SMALL)
    turned["datacenters"][0]["clusters"].reverse()
    assert set(read(yaml.safe_dump(turned), "test").cards) == set(network.cards)
    assert network.table.link_mb_s[1, 0] == 50.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name: a\n", "name: b\n"), "cluster 'b' is there 2 times"),
        (("name: east", "name: east/1"), "'east/1'"),
        (("cpu_cores: 8", "cpu_cores: -8"), "cpu_cores"),
        (("bandwidth_mb_s: 50", "bandwidth: 50"), "unknown field `bandwidth`"),
        (("from: store", "from: west"), "one of east, store"),
        (("context: b", "context: a"), "reached by"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(SMALL.replace(*change), "test")


def test_a_topology_without_cards_or_that_is_no_yaml_is_refused() -> None:
    for text in ("datacenters: []", "datacenters: [", "- 1"):
        with pytest.raises(ConfigError, match="topology"):
            read(text, "test")


def test_a_file_is_read_again_when_it_changes_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(SMALL)
    source = Source(str(path))
    assert source.changed() is not None
    assert source.changed() is None
    path.write_text(SMALL.replace("count: 2", "count: 3"))
    changed = source.changed()
    assert changed is not None
    assert len(changed.cards) == 4
    path.write_text("datacenters: nonsense")
    with pytest.raises(ConfigError):
        source.changed()
    assert source.changed() is None  # told once


def test_a_topology_comes_over_http() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(topology_text({"P100": 2}).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        network = Source(f"http://127.0.0.1:{server.server_address[1]}/").changed()
        assert network is not None
        assert set(network.cards) == {"cluster-0/node-0000/gpu0", "cluster-0/node-0000/gpu1"}
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(ConfigError, match="answers with a description"):
        Source(f"http://127.0.0.1:{server.server_address[1]}/").changed()
