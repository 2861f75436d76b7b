"""Programs that the laboratory starts while it talks to nodes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

FORKS = 600

#: As PySpark starts its gateway: by a fork, with something to be done in the child, and a pipe.
SCRIPT = f"""
import subprocess
from contextlib import suppress

import chaos
import grpc
from cluster.wire import admin_pb2, admin_pb2_grpc

stub = admin_pb2_grpc.AdminStub(grpc.insecure_channel("127.0.0.1:1"))
with suppress(grpc.RpcError):
    stub.DeleteVhost(admin_pb2.Vhost(name="none"), timeout=0.2)
for _ in range({FORKS}):
    child = subprocess.Popen(["true"], stdin=subprocess.PIPE, preexec_fn=lambda: None)
    child.stdin.close()
    assert child.wait() == 0, child.returncode
"""


def test_the_laboratory_can_start_other_programs_while_it_talks_to_nodes() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
