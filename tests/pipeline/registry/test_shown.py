"""What an approval links to is what its commit holds; nothing else of the machine can be asked for."""

import re

import pytest

from pipeline import approval, promote
from pipeline.errors import RegistryError
from pipeline.registry import dvc_objects, places, runs, shown, shown_page
from pipeline.registry.chain import sync
from pipeline.registry.git import Repository

PAGES = ("report.html", "worst-1.html", "worst-2.html", "worst-10.html")


def commit_of(run_id):
    return sync().resolve(f"refs/remotes/origin/{runs.branch_of(run_id)}")


def test_the_question_links_to_the_pages_of_its_own_commit(nights):
    asked = approval.question("functions", "one")
    links = re.findall(r"\]\((/[^)]*)\)", asked.body)
    assert links == [f"/loadmaster/{asked.commit}/functions/", f"/loadmaster/{asked.commit}/functions/report.html"]
    there = shown.of_commit(asked.commit, "functions")
    assert (there.run_id, there.report["digest"], there.report_sha256) == ("one", asked.digest, asked.report_sha256)
    assert there.pages == PAGES
    for page in PAGES:
        assert asked.digest.encode() in shown.page(asked.commit, "functions", page)


def test_links_go_below_the_path_that_airflow_has(nights, monkeypatch):
    monkeypatch.setenv(shown.URL_ENV, "https://example.org/airflow/")
    assert f"(/airflow/loadmaster/{commit_of('one')}/functions/)" in approval.question("functions", "one").body


def test_two_runs_have_pages_of_their_own(nights):
    first, second = (shown.page(commit_of(run), "functions", "worst-1.html") for run in ("one", "two"))
    assert first != second


def test_a_workspace_that_was_changed_changes_no_page(nights):
    commit = commit_of("one")
    before = {page: shown.page(commit, "functions", page) for page in PAGES}
    for page in PAGES:
        path = nights / "one" / "data" / "gate" / "functions" / page
        path.unlink()  # a link into the cache
        path.write_text("<script>another</script>")
    assert {page: shown.page(commit, "functions", page) for page in PAGES} == before


def test_bytes_that_are_not_those_of_the_lock_are_never_shown(nights, dvc_in_process):
    commit = commit_of("one")
    wanted = dvc_objects.members(runs.outputs_of(sync(), commit)["data/gate/functions"])["worst-1.html"]
    for store in dvc_objects.stores():
        path = dvc_objects.object_path(store, wanted)
        path.chmod(0o644)
        path.write_text("<script>another</script>")
    with pytest.raises((RegistryError, AssertionError)):  # dvc_in_process asserts that DVC succeeded
        shown.page(commit, "functions", "worst-1.html")


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "report.json",
        "report.md",
        "",
        ".",
        "..",
        "../functions/report.html",
        "../../../../params.yaml",
        "/etc/passwd",
        "worst-1.html/..",
        "worst-01.html",
        "worst-0.html",
        "worst-3.html",
        "worst-1.html\x00",
        "WORST-1.HTML",
        "worst-1.html\n",
        "worst-١.html",
        "a" * 5000,
    ],
)
def test_nothing_but_the_pages_can_be_asked_for(nights, name):
    with pytest.raises(shown.NotShownError):
        shown.page(commit_of("one"), "functions", name)


@pytest.mark.parametrize("problem", ["vm", "", "..", "functions/..", "functions/../functions", "*", "--help", "gate"])
def test_nothing_but_a_problem_of_the_run_can_be_asked_for(nights, problem):
    with pytest.raises(shown.NotShownError):
        shown.page(commit_of("one"), problem, "report.html")


def test_nothing_but_a_commit_that_a_run_recorded_can_be_asked_for(nights):
    commit, mirror = commit_of("one"), sync()
    parent = mirror.resolve(f"{commit}^")
    tree = mirror.text("rev-parse", f"{commit}^{{tree}}")
    branch = f"refs/remotes/origin/{runs.branch_of('one')}"
    for hostile in (parent, tree, branch, "HEAD", commit[:12], commit.upper(), f"{commit}\n", "--help", "", "0" * 40):
        with pytest.raises(shown.NotShownError):
            shown.page(hostile, "functions", "report.html")


def test_a_commit_that_this_machine_does_not_know_yet_is_fetched(nights):
    commit = commit_of("one")
    mirror = Repository(places.registry_mirror())
    mirror.run("update-ref", "-d", f"refs/remotes/origin/{runs.branch_of('one')}")
    assert shown.of_commit(commit, "functions").run_id == "one"


def test_replays_come_from_the_remote_when_the_cache_has_none(nights, dvc_in_process):
    commit = commit_of("one")
    before = shown.page(commit, "functions", "worst-1.html")
    for path in (places.dvc_cache() / "files").rglob("*"):
        if path.is_file():
            path.unlink()
    assert shown.page(commit, "functions", "worst-1.html") == before


def test_a_run_shows_its_problems_and_one_that_recorded_nothing_none(nights):
    assert [each.problem for each in shown.of_run("one")] == ["functions"]
    assert shown.of_run("never") == []
    assert shown.of_run("../../one\n") == []


def links_of(page):
    return re.findall(r'href="([^"]*)"', page.replace('href="data:,"', ""))


def test_the_page_says_what_is_asked_about_and_what_is_live(nights, service):
    promote.promote("functions", run_id="one", approver="ada", reason="good")
    there = shown.of_commit(commit_of("two"), "functions")
    service.policies["functions"] = {"digest": "sha256:" + "a" * 64, "counter": 1, "degraded": "the store <b>"}
    page = shown_page.of_commit(there, shown_page.ask(service.url))
    for fact in (there.commit, there.report["digest"], there.report_sha256, "two", "sha256:" + "a" * 64):
        assert str(fact) in page
    assert "9 decisions, 1 by the rule, p99 up to 2.5 ms" in page
    assert "the store &lt;b&gt;" in page
    assert links_of(page) == [*PAGES, "../../live"]
    assert f"../../{there.commit}/functions/worst-1.html" in shown_page.of_run(
        "two", [there], shown_page.ask(service.url)
    )


def test_what_the_report_says_is_text_and_never_markup(nights, service, judge_again):
    judge_again("one", reason="<script>alert(1)</script>", digest='"><img src=x>')
    for page in (
        shown_page.of_commit(shown.of_commit(commit_of("one"), "functions"), shown_page.ask(service.url)),
        shown_page.of_run("<b>", shown.of_run("one"), shown_page.ask(service.url)),
        shown_page.refused(RegistryError("<script>")),
    ):
        assert "<script>" not in page
        assert "<img" not in page
        assert "<b>" not in page


def test_a_service_that_does_not_answer_is_said_and_the_rest_is_shown(nights):
    state = shown_page.ask("http://127.0.0.1:9")
    page = shown_page.of_commit(shown.of_commit(commit_of("one"), "functions"), state)
    assert "does not answer" in page
    assert "worst-1.html" in page
    assert "No policy was ever live" in shown_page.now(state)


def test_the_live_page_tells_where_service_and_registry_disagree(history, service):
    service.policies["functions"] = {"digest": "sha256:" + "b" * 64, "counter": 9}
    page = shown_page.now(shown_page.ask(service.url))
    assert "the service and the registry do not agree" in page
    assert "sha256:" + "b" * 64 in page
