import os

# gRPC's own log lines ("Got goaway" when a peer restarts) add nothing to ours; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
