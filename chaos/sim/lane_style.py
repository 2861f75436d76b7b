"""How a page of lanes looks, light and dark."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #f3f4f6; --line: #d0d5dc; --muted: #5b6572;
  --good: #14713b; --bad: #b3261e; --odd: #8a5a00; --confirm: #1f5fbf; --deliver: #2f8f5b; --fault: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14171c; --soft: #1d2229; --line: #363d47;
  --muted: #9aa5b3; --good: #5ccb8a; --bad: #ff8a80; --odd: #f0b94a; --confirm: #7db2ff; --deliver: #69d39a;
  --fault: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1120px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 2.2rem; font-weight: 700; margin: .25rem 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .odd { color: var(--odd); }
.muted { color: var(--muted); } code { background: var(--soft); padding: .1rem .35rem; border-radius: 4px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .6rem; margin: 1rem 0; }
.card { background: var(--soft); border-radius: 8px; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 600; white-space: normal; vertical-align: bottom; }
svg { width: 100%; height: auto; background: var(--soft);
  border-radius: 8px; } svg text { font: 12px system-ui, sans-serif; } .axis { fill: var(--muted); }
.grid { stroke: var(--line); stroke-width: 1; } polyline { fill: none; stroke-width: 1.6; }
.confirms { stroke: var(--confirm); stroke-width: 1.8; } .deliveries { stroke: var(--deliver); stroke-width: 1.8; }
.fault { fill: var(--fault); opacity: .16; } .fault-label { fill: var(--fault); }
.promotion { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 4 3; } .promotion-label { fill: var(--ink); }
"""
