"""A small wrapper of the ``git`` program: plumbing only, so that no working tree can be left half-changed.

Commits and tags carry the time of the record they hold and a fixed author: the same record gives the same object.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import RegistryError

AUTHOR = "Loadmaster", "loadmaster@localhost"

_SETTINGS = ["-c", "gc.auto=0", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]

_RECEIVE = "git -c core.hooksPath=/dev/null -c core.alternateRefsCommand= -c receive.autogc=false receive-pack"
"""How a push is received in a repository of this machine: nothing that somebody left in its ``hooks/`` is run. What
``_SETTINGS`` say does not reach the receiving process."""

_LOCK = re.compile(r"'([^']+\.lock)': File exists")


def stale_lock(message: str) -> str:
    """Name the lock file that git's complaint is about, and its age; empty when it is about none that is still there.

    A killed process leaves its lock behind and git never removes it: somebody must look, and delete it.
    """
    found = _LOCK.search(message)
    if found is None:
        return ""
    path = Path(found[1])
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return ""  # It went meanwhile: not stale.
    return f"{path} has been there for {age_s:.0f} s"


class Repository:
    """A git repository at ``path`` (bare, or a clone with a working tree that is left alone)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> Repository:
        """Open a bare repository whose branches only grow, made if it is not there; two processes may do so at once."""
        if not (path / "HEAD").exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
                made = cls(Path(scratch, "new.git"))
                made.path.mkdir()
                made.run("init", "--quiet", "--bare", "--initial-branch=promotions")
                made.run("config", "receive.denyNonFastForwards", "true")
                try:
                    made.path.rename(path)
                except OSError:
                    if not (path / "HEAD").exists():
                        raise
        return cls(path)

    def run(self, *arguments: str, data: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """Run git and return what it printed; an error carries git's own words."""
        done = self._spawn(arguments, data, env)
        if done.returncode:
            raise RegistryError(
                f"git {' '.join(arguments[:3])} in {self.path} ended with {done.returncode}: "
                + done.stderr.decode(errors="replace").strip()
            )
        return done.stdout

    def push(self, remote: str, *refspecs: str) -> None:
        """Push all of it or nothing; hooks that lie in a repository of this machine are not run."""
        ours = [f"--receive-pack={_RECEIVE}"] if remote.startswith("file://") or Path(remote).is_dir() else []
        self.run("push", "--quiet", "--atomic", *ours, remote, *refspecs)

    def text(self, *arguments: str) -> str:
        """Run git and return what it printed as a stripped string."""
        return self.run(*arguments).decode().strip()

    def succeeds(self, *arguments: str) -> bool:
        """Run git for its exit code."""
        return self._spawn(arguments, None, None).returncode == 0

    def complaints(self, *arguments: str) -> list[str]:
        """Run a check and return what it complains about, line by line; nothing when it succeeds."""
        done = self._spawn(arguments, None, None)
        lines = (done.stdout + done.stderr).decode(errors="replace").splitlines() if done.returncode else []
        return [line for line in lines if line.strip()] or ([f"exit code {done.returncode}"] if done.returncode else [])

    def paths(self, commit: str) -> list[str]:
        """List the files of a commit."""
        return list(self.modes(commit))

    def modes(self, commit: str) -> dict[str, str]:
        """Return path -> mode (``100644`` for a plain file) of everything in a commit."""
        entries = self.run("ls-tree", "-r", "-z", commit).decode().split("\0")[:-1]
        return {path: meta.split()[0] for meta, path in (entry.split("\t", 1) for entry in entries)}

    def disguises(self) -> list[str]:
        """Name what would make git show another history than the objects hold; our own calls ignore the first two."""
        found = [f"{ref} shows another object in its place" for ref in self.refs("refs/replace")]
        for name in ("info/grafts", "shallow"):
            path = self.path / name
            if path.is_file() and path.stat().st_size:
                found.append(f"{name} hides or changes the parents of commits")
        return found

    def resolve(self, name: str) -> str | None:
        """Return the object a name stands for, or None."""
        done = self._spawn(("rev-parse", "--quiet", "--verify", f"{name}^{{}}"), None, None)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def refs(self, *patterns: str) -> dict[str, str]:
        """Return ref -> object (a tag object is not followed)."""
        listing = self.text("for-each-ref", "--format=%(refname) %(objectname)", *patterns)
        return dict(line.split(" ", 1) for line in listing.splitlines())

    def files(self, commit: str, *paths: str) -> dict[str, bytes]:
        """Return path -> content of the files of a commit, below ``paths`` if given; two processes however many."""
        listing = self.run("ls-tree", "-r", "-z", commit, "--", *paths).decode()
        entries = [entry.split("\t", 1) for entry in listing.split("\0") if entry]
        names = [path for meta, path in entries if meta.split()[1] == "blob"]
        objects = [meta.split()[2] for meta, _ in entries if meta.split()[1] == "blob"]
        return dict(zip(names, self.blobs(objects), strict=True))

    def blobs(self, objects: Iterable[str]) -> list[bytes]:
        """Return the contents of many objects at once."""
        wanted = list(objects)
        if not wanted:
            return []
        output = self.run("cat-file", "--batch", data="\n".join(wanted).encode() + b"\n")
        contents, position = [], 0
        for name in wanted:
            end = output.index(b"\n", position)
            header = output[position:end].split()
            if header[-1] == b"missing":
                raise RegistryError(f"git object {name} is missing in {self.path}", fix="run registry restore")
            size = int(header[-1])
            contents.append(output[end + 1 : end + 1 + size])
            position = end + 1 + size + 1
        return contents

    def commit(self, files: Mapping[str, bytes], message: str, *, parent: str | None, when: str) -> str:
        """Make a commit object that adds or replaces ``files``; no branch moves.

        Args:
            files: Path -> content.
            message: The commit message.
            parent: The commit to build on; None for the first.
            when: RFC 3339 time of author and committer.
        """
        lines = []
        for path, content in sorted(files.items()):
            blob = self.run("hash-object", "-w", "--stdin", data=content).decode().strip()
            lines.append(f"100644 {blob}\t{path}\n")
        with tempfile.TemporaryDirectory(prefix="loadmaster-index-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            if parent is not None:
                self.run("read-tree", parent, env=index)
            self.run("update-index", "--add", "--index-info", data="".join(lines).encode(), env=index)
            tree = self.run("write-tree", env=index).decode().strip()
        return self.commit_tree(tree, message, parents=[parent] if parent else [], when=when)

    def commit_tree(self, tree: str, message: str, *, parents: Iterable[str], when: str) -> str:
        """Make a commit object of a tree that exists."""
        options = [option for parent in parents for option in ("-p", parent)]
        dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        return self.run("commit-tree", tree, *options, data=message.encode(), env=dates).decode().strip()

    def tag(self, name: str, commit: str, message: str, *, when_s: int) -> str:
        """Make an annotated tag object; no ref is made."""
        person = f"{AUTHOR[0]} <{AUTHOR[1]}> {when_s} +0000"
        text = f"object {commit}\ntype commit\ntag {name}\ntagger {person}\n\n{message}\n"
        return self.run("mktag", data=text.encode()).decode().strip()

    def _spawn(
        self, arguments: Iterable[str], data: bytes | None, env: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["git", "-C", str(self.path), *_SETTINGS, *arguments],
            input=data,
            capture_output=True,
            env=_environment(env or {}),
            check=False,
        )


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    # A git hook that runs us exports GIT_DIR and friends, which would redirect every call to its own repository.
    inherited = {key: value for key, value in os.environ.items() if key not in _REDIRECTING}
    fixed = {
        "LC_ALL": "C",
        # What is read must be what the hashes say, whatever somebody has put into the repository.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": AUTHOR[0],
        "GIT_AUTHOR_EMAIL": AUTHOR[1],
        "GIT_COMMITTER_NAME": AUTHOR[0],
        "GIT_COMMITTER_EMAIL": AUTHOR[1],
    }
    return {**inherited, **fixed, **extra}


_REDIRECTING = {
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX",
    "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_REPLACE_REF_BASE",
}  # fmt: skip
