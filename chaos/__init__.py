"""The laboratory: clusters that are broken on purpose, and the verdict on what they did."""

import os

# Before gRPC is imported: else its threads begin anew in every child that the process forks, where they find their
# descriptors closed, and some of these children die of it before they become another program (Spark's gateway is one).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
