"""``loadmaster jobs`` against a service on a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
import yaml

from placement.cpn.command import main
from tests.placement.cpn.conftest import manifest
from tests.placement.cpn.played import Rehearsal
from tests.placement.cpn.test_api import Desk


@pytest.fixture
def desk(rehearse: Callable[..., Rehearsal]) -> Iterator[tuple[Desk, str]]:
    rehearsal = rehearse({"P100": 2}, strategy="fifo")
    desk = Desk(rehearsal)
    server = uvicorn.Server(uvicorn.Config(desk.client.app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield desk, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=20)
    rehearsal.store.close()


def test_jobs_are_submitted_listed_withdrawn_read_and_reported(
    desk: tuple[Desk, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsal, url = desk[0].rehearsal, desk[1]
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([manifest("one"), manifest("two", epochs=100_000)]))
    assert main(["submit", str(file), "--url", url, "--tenant", "team"]) == 0
    first, second = (line.split()[0] for line in capsys.readouterr().out.splitlines())
    assert main(["submit", str(file), "--url", url, "--tenant", "team"]) == 0
    assert capsys.readouterr().out.count("(was there)") == 2
    assert main(["list", "--url", url, "--state", "waiting", "--json"]) == 0
    assert [job["id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [second, first]
    rehearsal.run(until_s=rehearsal.world.now + 1.0)
    assert main(["cancel", second, "--url", url]) == 0
    assert "cancelling" in capsys.readouterr().out
    rehearsal.run()
    assert main(["list", "--url", url]) == 0
    assert "in all: 1 cancelled, 1 finished" in capsys.readouterr().out
    assert main(["logs", first, "--url", url]) == 0
    assert "log of lm-" in capsys.readouterr().out
    assert main(["report", "--store", rehearsal.url]) == 0
    said = capsys.readouterr().out
    assert "2 jobs: 1 cancelled, 1 finished" in said
    assert "Did not finish:\n  two: cancelled" in said
    assert main(["report", "--store", rehearsal.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 2
    learned = tmp_path / "finished.csv"
    shown = ["profiles", "--store", rehearsal.url, "--topology", rehearsal.topology, "--out", str(learned)]
    assert main(shown) == 0
    assert "1 sets of 2 attempts" in capsys.readouterr().out
    assert learned.read_text().splitlines()[1].startswith("P100,")


def test_refusals_are_printed_with_their_field_and_the_exit_code_says_so(
    desk: tuple[Desk, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([manifest("bad", "gpt"), manifest("good")]))
    assert main(["submit", str(file), "--url", desk[1]]) == 1
    said = capsys.readouterr()
    assert "model_name" in said.err
    assert "good" in said.out
    with pytest.raises(Exception, match="404"):
        main(["logs", "nobody", "--url", desk[1]])
    with pytest.raises(Exception, match="does not answer"):
        main(["list", "--url", "http://127.0.0.1:1"])
