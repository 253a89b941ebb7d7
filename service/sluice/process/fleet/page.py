"""The page of a fleet: one row for each pipeline, with the way to its own page.

Invariants: made here as text, every value escaped; the browser may run no script at all, and style with
what is in the page alone. The page has no verb.
"""

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from typing import Any

from sluice.health.endpoint import Answer
from sluice.printable import counted

_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #b42318; --line: #8884; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .6rem; text-align: left; vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.healthy { color: var(--good); }
.stopped, .lost, .unknown, .refused { color: var(--bad); font-weight: 600; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_HEADINGS = ("Pipeline", "State", "Tables", "Lag", "Restarts", "What to know")


def page(status: Mapping[str, Any]) -> Answer:
    """`status` as a page, which the browser asks for again every few seconds."""
    rows = "".join(map(_row, status["pipelines"]))
    refused = "".join(
        f'<tr><td>{escape(one["config"])}</td><td class="refused">refused</td><td></td><td></td><td></td>'
        f"<td>{escape(one['reason'])}</td></tr>"
        for one in status["refused"]
    )
    applier = "runs" if status["applier"]["running"] else "does not run"
    heads = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        '<meta name="viewport" content="width=device-width"><title>'
        f"Sluice: {counted(len(status['pipelines']), 'pipeline')}, "
        f"{escape(status['state'])}</title><style>{_STYLE}</style></head>"
        f'<body><h1>Fleet: <span class="{escape(status["state"])}">{escape(status["state"])}</span></h1>'
        f"<p>The applier of all pipelines {applier}. The same facts: "
        '<a href="status">/status</a>; numbers over time: <a href="metrics">/metrics</a>.</p>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}{refused}</tbody></table></body></html>\n"
    )
    return Answer(200, text.encode(), "text/html; charset=utf-8", _HEADERS)


def _row(one: Mapping[str, Any]) -> str:
    name, state = escape(one["pipeline"]), escape(one["state"])
    link = f'<a href="pipelines/{name}/">{name}</a>' if one["ingest"]["running"] else name
    lag = "" if one["lag_seconds"] is None else f"{one['lag_seconds']:.1f} s"
    tables = "" if one["tables"] is None else f"{one['tables']}"
    known = "; ".join(filter(None, (one["headline"], one["configuration_refused"])))
    return (
        f'<tr><td>{link}</td><td class="{state}">{state}</td><td class="number">{tables}</td>'
        f'<td class="number">{lag}</td><td class="number">{one["ingest"]["restarts"]}</td><td>{escape(known)}</td></tr>'
    )
