"""Make the protobuf code of ``cluster/wire`` from ``proto``, or check that the committed code is what would be made.

    python -m tests.support.wire_code            # make it (`make proto`)
    python -m tests.support.wire_code --check    # complain if it is not in step (`make check`)

The files are named to protoc as if they lay in ``cluster/wire``: then the modules import each other by the right name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "cluster/wire"
#: Services with ready-made stubs. The mesh is carried by generic handlers, so it has none.
STUBBED = ("admin",)


def generate(target: Path) -> None:
    """Write ``cluster/wire/*_pb2*`` below ``target``. Raises `subprocess.CalledProcessError`."""
    names = sorted(path.stem for path in (ROOT / "proto").glob("*.proto"))
    _protoc(names, [f"--python_out={target}", f"--mypy_out=quiet:{target}"])
    _protoc(list(STUBBED), [f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet:{target}"])


def _protoc(names: list[str], outputs: list[str]) -> None:
    files = [f"{PACKAGE}/{name}.proto" for name in names]
    # The mypy plugins are programs of the same virtual environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE}={ROOT / 'proto'}", *outputs, *files]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PATH": path})


def files_out_of_step() -> list[str]:
    """Committed files that differ from what would be made, are missing, or come from no ``.proto`` any more."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.name: path.read_bytes() for path in (Path(scratch) / PACKAGE).iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / PACKAGE).glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        names = files_out_of_step()
        if names:
            print(f"{PACKAGE} is not what proto/ says; run `make proto` and commit: {', '.join(names)}")
        return 1 if names else 0
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
