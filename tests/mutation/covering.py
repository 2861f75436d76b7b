"""Which tests execute which line of the product, recorded once and kept.

A recording is good for the text that it was made of: of the product, of what tests share, and of each test file. If
only test files have changed, only those are recorded again.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.mutator import Mutant
from tests.mutation.recording import DIRECTORY_VARIABLE, PACKAGES_VARIABLE, LineNumbers

FAST = "not (integration or spark or slow or docker)"
#: Tests of these look at the text of the product or at this tool, not at what the product does.
NOT_ASKED = ("tests/test_architecture.py", "tests/unit/mutation")


class Test(NamedTuple):
    """One that executes a line."""

    #: As pytest names it.
    name: str
    #: CPU time when it was recorded.
    seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


class Covering:
    """Looks up tests by line."""

    def __init__(
        self,
        numbers: LineNumbers,
        recorded: Mapping[str, tuple[float, str]],
        importers: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """``importers``: see there."""
        self._numbers = numbers
        self._importers = importers or {}
        self._tests = sorted(
            ((Test(name, seconds), int(bits, 16)) for name, (seconds, bits) in recorded.items()),
            key=lambda each: (each[0].seconds, each[0].name),
        )

    def of(self, mutant: Mutant) -> list[Test]:
        """The tests that can notice it, the quickest first.

        What is run when a module is imported, a function that is called then included, concerns every test that
        executes a line of this module, or whose file imports it, and after them every one of its package: others may
        use its constants."""
        if mutant.is_in_function:
            first = self._numbers.first(mutant.path)
            assert first is not None
            if tests := self._with_any_of(1 << (first + mutant.line)):
                return tests
        own = self._with_any_of(self._mask_of([mutant.path]))
        files = self._importers.get(mutant.path, ())
        importing = [test for test, _ in self._tests if test.file in files]
        package = self._with_any_of(self._mask_of(self._numbers.package_of(mutant.path)))
        return list(dict.fromkeys((*own, *importing, *package)))

    def _mask_of(self, paths: Iterable[str]) -> int:
        ranges = map(self._numbers.range_of, paths)
        return sum(((1 << len(lines)) - 1) << lines.start for lines in ranges)

    def _with_any_of(self, mask: int) -> list[Test]:
        return [test for test, bits in self._tests if bits & mask]


def test_files(root: Path) -> list[str]:
    return [
        name
        for name in sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
        if not name.startswith((*NOT_ASKED, "tests/integration", "tests/spark"))
    ]


def importers(root: Path, files: Iterable[str]) -> dict[str, set[str]]:
    """Path of a module -> those of the test ``files`` that import it, or something of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in files:
        for node in ast.walk(ast.parse((root / name).read_bytes(), filename=name)):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                modules = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            for module in modules:
                found[module.replace(".", "/") + ".py"].add(name)
    return found


def digest_of(root: Path, names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def shared_digest(root: Path) -> str:
    """Of everything but the test files themselves."""
    product = [path for package in ("node", "cluster", "chaos") for path in (root / package).rglob("*.py")]
    support = [path for path in (root / "tests").rglob("*") if path.suffix in {".py", ".json"} and path.is_file()]
    names = sorted(path.relative_to(root).as_posix() for path in (*product, *support))
    tool = ("tests/mutation", "tests/unit/mutation", "tests/integration", "tests/spark", "tests/bench")
    tests = set(test_files(root))
    return digest_of(root, [name for name in names if name not in tests and not name.startswith(tool)])


def covering(root: Path, files: Sequence[str], packages: Sequence[str], cache: Path, jobs: int) -> Covering:
    """Of these test files of the tree at ``root``, recorded as far as ``cache`` does not have it."""
    shared = shared_digest(root) + "".join(packages)
    known: dict[str, Any] = {}
    if cache.exists():
        kept = json.loads(gzip.decompress(cache.read_bytes()))
        known = kept["files"] if kept["shared"] == shared else {}
    digests = {name: digest_of(root, [name]) for name in files}
    missing = [name for name, digest in digests.items() if known.get(name, {}).get("digest") != digest]
    if missing:
        print(f"recording which lines the tests of {len(missing)} files execute ...", flush=True)
        recorded = record(root, missing, packages, jobs)
        for name in missing:
            known[name] = {"digest": digests[name], "tests": {}}
        for test, what in recorded.items():
            known[test.partition("::")[0]]["tests"][test] = what
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_bytes(gzip.compress(json.dumps({"shared": shared, "files": known}).encode()))
    tests = {test: what for name in files for test, what in known[name]["tests"].items()}
    return Covering(LineNumbers(root, packages), tests, importers(root, files))


def record(root: Path, files: Sequence[str], packages: Sequence[str], jobs: int) -> dict[str, tuple[float, str]]:
    """Test -> its seconds and the bits of its lines. Tests that fail are left out."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {
            "PYTHONPATH": str(root),
            "PYTEST_PLUGINS": "tests.mutation.recording",
            DIRECTORY_VARIABLE: directory,
            PACKAGES_VARIABLE: " ".join(packages),
        }
        side_by_side = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
        command = [sys.executable, "-m", "pytest", *side_by_side, "-m", FAST, *files]
        ended = subprocess.run(command, cwd=root, env=environment, check=False, capture_output=True, text=True)
        recorded: dict[str, tuple[float, str]] = {}
        for path in sorted(Path(directory).glob("*.json")):
            recorded.update(json.loads(path.read_text(encoding="utf-8")))
    if ended.returncode not in {0, 1, 5}:
        sys.exit(f"the tests could not be recorded:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    if ended.returncode == 1:
        print("some tests fail as it is, and are not asked:", ended.stdout[-1500:], sep="\n", flush=True)
    return recorded
