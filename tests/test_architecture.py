"""What the layers, the sizes and the documents promise, checked on the code itself.

Which package may import which is `make check`'s business (import-linter, contracts in pyproject.toml); here is what
those contracts cannot say.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from node.config_keys import reference_table
from tests.support.wire_code import files_out_of_step

ROOT = Path(__file__).parent.parent
CODE = [
    path
    for package in ("node", "cluster", "chaos")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "_pb2" not in path.name
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FUNCTION_LINES = 70
#: Function -> why it may be longer.
LONG_FUNCTIONS = {
    "node/amqp/codec.py:_read_frames": "every byte of every client passes here; a call per frame would halve its speed",
}
#: A file longer than this has two subjects, as a rule.
MAX_FILE_LINES = 600
#: File -> why it may be longer.
LONG_FILES: dict[str, str] = {}
#: A module this long needs a sentence at its top to say what it is.
UNEXPLAINED_MODULE_LINES = 150

PURE = (
    "node/alarms",
    "node/amqp",
    "node/broker",
    "node/routing",
    "node/topology",
    "node/queues",
    "node/flow",
    "cluster/raft",
    "cluster/metadata",
    "cluster/mirroring",
    "cluster/policy",
    "cluster/membership",
    "cluster/sessions",
)
#: Modules of ``node`` that may open files: the one door to the disk, and the reader of the configuration.
FILE_USERS = ("node/store/disk/disk.py", "node/config.py")
FILE_MODULES = {"fcntl", "glob", "io", "mmap", "os", "shutil", "tempfile"}
FILE_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "rglob"}

#: Distribution -> what it is imported as, where the names differ.
IMPORT_NAMES = {
    "aio-pika": "aio_pika",
    "grpcio": "grpc",
    "protobuf": "google",
    "tomli-w": "tomli_w",
    "toxiproxy-python": "toxiproxy",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module", autouse=True)
def no_search_for_garbage() -> Iterator[None]:
    """The trees stay until the last test here; looking for garbage among them again and again would take most of the
    time, here and in all tests behind these."""
    gc.disable()
    yield
    for cached in (tree_of, statements_of, nodes_of):
        cached.cache_clear()
    gc.enable()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def statements_of(path: Path) -> list[ast.stmt]:
    """Those of all functions and branches, too. Far fewer than nodes, for questions about imports and functions."""
    found: list[ast.stmt] = []
    waiting: list[ast.AST] = [tree_of(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            found.append(node)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, ())  # of a lambda and a conditional expression: not a list
            waiting += inner if isinstance(inner, list) else ()
    return found


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All of a tree, down to every name."""
    return list(ast.walk(tree_of(path)))


def test_there_is_code_to_check() -> None:
    assert len(CODE) > 50
    assert len(TESTS) > 10


def test_functions_fit_a_screen() -> None:
    long = {
        f"{name_of(path)}:{node.name}"
        for path in CODE + TESTS
        for node in statements_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == LONG_FUNCTIONS.keys(), (
        "split these, or say why not in LONG_FUNCTIONS (and remove what is short again)"
    )


def test_files_have_one_subject() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE + TESTS}
    long = {name for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert long == LONG_FILES.keys(), "split these, or say why not in LONG_FILES (and remove what is short again)"


def test_long_modules_say_what_they_are() -> None:
    silent = [
        name_of(path)
        for path in CODE
        if len(path.read_text(encoding="utf-8").splitlines()) > UNEXPLAINED_MODULE_LINES
        and ast.get_docstring(tree_of(path)) is None
    ]
    assert not silent


def imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    """Every absolute import of a file, with its line."""
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph() -> dict[str, set[str]]:
    """Module -> what it imports of ours, wherever the import stands: also for type checkers, also within a function.

    That Python runs the package of a module first does not count.
    """
    modules = {module_of(path): path for path in CODE}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        imported = graph[module] = set()
        for node in statements_of(path):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name_of(path)}:{node.lineno} imports by a relative name"
                names = {f"{node.module}.{alias.name}" for alias in node.names}  # modules, or what a module holds
                imported |= {name if name in modules else str(node.module) for name in names}
        imported &= modules.keys() - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """The strongly connected components with more than one member, each sorted (Tarjan)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: set[tuple[str, ...]] = set()

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for imported in sorted(graph[module]):
            if imported not in numbers:
                visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == numbers[module]:
            members = path[path.index(module) :]
            del path[path.index(module) :]
            if len(members) > 1:
                found.add(tuple(sorted(members)))

    for module in graph:
        if module not in numbers:
            visit(module)
    return found


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a", "e"}}
    assert circles(graph) == {("a", "b", "c"), ("d", "e")}


def test_no_modules_import_each_other() -> None:
    """The lower of two names what it needs of the upper one, as a Protocol."""
    assert circles(import_graph()) == set()


def test_files_are_opened_in_one_place() -> None:
    """Everything else in a node goes through `node.store.disk.disk`, so that its simulated twin can fail for all."""
    offenders = []
    for path in CODE:
        name = name_of(path)
        if not name.startswith("node/") or name in FILE_USERS:
            continue
        offenders += [
            f"{name}:{line} imports {module}"
            for module, line in imported_modules(path)
            if module.split(".")[0] in FILE_MODULES
        ]
        offenders += [
            f"{name}:{node.lineno} opens files"
            for node in nodes_of(path)
            if isinstance(node, ast.Call)
            and (
                (isinstance(node.func, ast.Name) and node.func.id == "open")
                or (isinstance(node.func, ast.Attribute) and node.func.attr in FILE_METHODS)
            )
        ]
    assert not offenders, "\n".join(offenders)


def test_pure_packages_get_chance_from_outside() -> None:
    """They may name `random.Random`, the type of what they are given, and nothing else of that module."""
    offenders = []
    for path in CODE:
        name = name_of(path)
        if not name.startswith(PURE):
            continue
        for node in nodes_of(path):
            if not isinstance(node, ast.Attribute | ast.ImportFrom):
                continue
            is_module_use = (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "random"
                and node.attr != "Random"
            )
            is_other_name = (
                isinstance(node, ast.ImportFrom)
                and node.module == "random"
                and any(alias.name != "Random" for alias in node.names)
            )
            if is_module_use or is_other_name:
                offenders.append(f"{name}:{node.lineno}")
    assert not offenders


def fast_test_files() -> set[Path]:
    """The tests that need no process, and the helpers that they import."""
    found: set[Path] = set()
    waiting = {path for path in TESTS if not {"integration", "bench", "support"} & set(path.parts)}
    while waiting:
        path = waiting.pop()
        found.add(path)
        helpers = {ROOT / (module.replace(".", "/") + ".py") for module, _ in imported_modules(path)}
        waiting |= (helpers & set(TESTS)) - found
    return found


def test_tests_of_other_folders_say_what_they_need() -> None:
    """`make test` and the long tests of `make integration` look into these folders only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = tuple(project["tool"]["pytest"]["ini_options"]["testpaths"])
    others = [path for path in TESTS if path.name.startswith("test_") and not name_of(path).startswith(folders)]
    assert ROOT / "tests/integration/chaos/test_commands.py" in others
    mark = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(integration|spark|docker)\b", re.MULTILINE)
    silent = [name_of(path) for path in others if not mark.search(path.read_text(encoding="utf-8"))]
    assert not silent, "mark all of the file, or put it where pure tests are"


#: Where sleeping takes no time.
VIRTUAL_TIME = (
    "tests/conformance/ha/",
    "tests/support/mesh_nodes.py",
    "tests/unit/chaos/conduct/",
    "tests/unit/chaos/sim/",
    "tests/unit/cluster/transport/",
)


def test_tests_do_not_sleep() -> None:
    files = fast_test_files()
    assert ROOT / "tests/support/raft_network.py" in files
    offenders = [
        f"{name_of(path)}:{node.lineno}"
        for path in files
        if not name_of(path).startswith(VIRTUAL_TIME) and ".sleep" in path.read_text(encoding="utf-8")
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id == "time" or (node.func.value.id == "asyncio" and not is_zero(node.args)))
    ]
    assert not offenders


def is_zero(arguments: list[ast.expr]) -> bool:
    """Whether a sleep only lets the others run."""
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def distributions(names: list[str]) -> set[str]:
    """Import names of requirements such as ``click==8.1``."""
    found = {requirement.partition("==")[0] for requirement in names}
    return {IMPORT_NAMES.get(name, name) for name in found}


def test_code_imports_what_is_declared() -> None:
    """A broker needs the plain dependencies only; the laboratory may use its extra, tests may use all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = distributions(project["dependencies"])
    laboratory = base | distributions(project["optional-dependencies"]["chaos"])
    ours = {"node", "cluster", "chaos"}
    offenders = []
    for path in CODE:
        name = name_of(path)
        allowed = (laboratory if name.startswith("chaos/") else base) | ours
        for module, line in imported_modules(path):
            root = module.split(".")[0]
            if root not in allowed and root not in sys.stdlib_module_names:
                offenders.append(f"{name}:{line} imports {module}")
    assert not offenders, "\n".join(offenders)


def test_dependencies_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    assert [name for name in project["dependencies"] + extras if "==" not in name] == []


def test_what_dependencies_bring_is_pinned() -> None:
    """A set-up next year installs what was tested, down to the last package."""
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = project["dependencies"] + [name for names in project["optional-dependencies"].values() for name in names]
    waiting = [Requirement(name) for name in direct]
    seen = {canonicalize_name(requirement.name) for requirement in waiting}
    pinned |= seen
    while waiting:
        requirement = waiting.pop()
        for text in requires(requirement.name) or ():
            brought = Requirement(text)
            wanted = brought.marker is None or any(
                brought.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            )
            if wanted and canonicalize_name(brought.name) not in seen:
                seen.add(canonicalize_name(brought.name))
                waiting.append(brought)
    assert seen - pinned == set()


def test_generated_code_is_in_step() -> None:
    assert files_out_of_step() == []


def test_the_documented_keys_are_the_keys() -> None:
    assert reference_table() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tests_that_the_documents_name_exist() -> None:
    """`docs/storage.md` maps facts to tests: a renamed test must be renamed there."""
    named = re.findall(
        r"`((?:unit|property|integration)/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/storage.md").read_text()
    )
    assert len(named) > 40
    for path, name in named:
        text = (ROOT / "tests" / path).read_text()
        assert not name or f"def {name}(" in text, f"{path} has no {name}"


# --- the world of a node: `cluster.composition.World` ---

#: Modules of the library by which something outside of the process, or of the program, is touched.
OUTSIDE = {
    *(
        "concurrent",
        "ctypes",
        "fcntl",
        "gc",
        "glob",
        "grpc",
        "io",
        "mmap",
        "multiprocessing",
        "os",
        "platform",
        "psutil",
    ),
    *(
        "resource",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
    ),
    *("time", "uuid", "uvloop"),
}
#: ``module.name`` of such a module that touches nothing.
HARMLESS = {"os.strerror", "threading.Lock"}
#: Methods of a loop, and functions of asyncio, that open sockets, start threads or processes, or hear signals.
LOOP_EFFECTS = {
    *("add_signal_handler", "connect_accepted_socket", "create_connection", "create_datagram_endpoint"),
    *("create_server", "create_subprocess_exec", "create_subprocess_shell", "create_unix_connection"),
    *("create_unix_server", "getaddrinfo", "getnameinfo", "open_connection", "open_unix_connection"),
    *("run_in_executor", "sock_accept", "sock_connect", "sock_recv", "sock_sendall", "start_server"),
    *("start_unix_server", "subprocess_exec", "subprocess_shell", "to_thread"),
}
REAL_DISKS = {"RealDisk", "ReadOnlyDisk", "FREEING"}
#: Module or package of a node -> what of the world it is. Everything else is handed what it needs.
WORLD = {
    "cluster/real_world/": "the machine and the process, as parts of a world",
    "cluster/daemon.py": "the process: its loop, its signals, its log",
    "cluster/cli/": "a program of its own, which asks nodes",
    "cluster/home_cookie.py": "a file of the user, for a node alone and programs that ask it",
    "cluster/directory.py": "files of a local cluster, for programs that ask nodes",
    "cluster/transport/__init__.py": "what gRPC reads from the environment, before it is loaded",
    "cluster/transport/probe.py": "sockets that tell refused from silent",
    "cluster/transport/grpc_": "the network between nodes",
    "cluster/transport/admin_": "the admin service and its clients, over gRPC",
    "node/amqp/server/sockets.py": "sockets of AMQP clients",
    "node/amqp/server/connection.py": "options of the sockets that it is given",
    "node/config.py": "reads the configuration, before there is a node",
    "node/inspection/": "looks at the files of a node that does not run",
    "node/store/disk/disk.py": "the disk",
    "node/store/disk/freeing.py": "the thread of the disk that frees space",
}


def effects_in(path: Path) -> Iterator[str]:
    """What in a module touches the world by itself, and where."""
    nodes = nodes_of(path)
    used = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                touched = {f"{module}.{alias.name}" for alias in names}
                if module.split(".")[0] in OUTSIDE and not touched <= HARMLESS:
                    yield f"{node.lineno} imports from {module}"
                if module == "random" and touched != {"random.Random"}:
                    yield f"{node.lineno} imports chance"
                if REAL_DISKS & {alias.name for alias in names}:
                    yield f"{node.lineno} imports a real disk"
            case ast.Name(id=name) if (name in OUTSIDE or name == "random") and id(node) in used:
                what = f"{name}.{used[id(node)]}"
                if what not in HARMLESS | {"random.Random"}:
                    yield f"{node.lineno} uses {what}"
            case ast.Attribute(attr=attr) if attr in LOOP_EFFECTS | FILE_METHODS:
                yield f"{node.lineno} uses {attr}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "today" | "utcnow")):
                yield f"{node.lineno} asks for the time of day"
            case ast.Call(func=ast.Name(id="open")):
                yield f"{node.lineno} opens a file"
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=[]):
                yield f"{node.lineno} takes a seed from the system"


def test_a_node_touches_the_world_only_where_it_is_told_to() -> None:
    """So that a simulator can give it another one. Defaults count: whoever forgets a clock gets no real one."""
    offenders = [
        f"{name_of(path)}:{effect}"
        for path in CODE
        if not name_of(path).startswith(("chaos/", *WORLD))
        for effect in effects_in(path)
    ]
    assert not offenders, "\n".join(offenders)


def test_effects_are_found(tmp_path: Path) -> None:
    """One line for each way to touch the world, and some that only look like it."""
    guilty = (
        "import time\ndef wait(clock=time.monotonic): ...",
        "from time import monotonic",
        "import random\nrandom.random()",
        "import random\nrandom.Random()",
        "from random import SystemRandom",
        "import threading\nthreading.Thread()",
        "loop.run_in_executor(None, work)",
        "import os\nos.urandom(8)",
        "from node.store.disk.disk import Disk, RealDisk",
        "from datetime import datetime\ndatetime.now()",
        "open('x')",
    )
    innocent = (
        "from random import Random\ndef shuffle(chance: Random): ...",
        "import random\ndef shuffle(chance: random.Random): ...",
        "import os\nos.strerror(1)",
        "loop.call_later(1, work)",
        "loop.time()",
        "from datetime import datetime\ndatetime(1970, 1, 1)",
        "self.time.now()",
    )
    for number, text in enumerate(guilty + innocent):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        assert bool(list(effects_in(path))) is (text in guilty), text


def test_the_world_has_no_part_that_is_gone() -> None:
    names = [name_of(path) for path in CODE]
    assert [part for part in WORLD if not any(name.startswith(part) for name in names)] == []
