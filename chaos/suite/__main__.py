"""``python -m chaos.suite``: what `warren chaos` will be."""

from __future__ import annotations

from chaos.suite.commands import chaos_group

if __name__ == "__main__":
    chaos_group(prog_name="python -m chaos.suite")
