"""The status page: one file without anything from elsewhere, which shows what /status says.

Invariants: the browser may run and style with what is in the file and nothing else, and may talk to
this server alone: the policy names the very hashes of the file's own script and style, so that not
even a name that slipped through as markup could do anything. The page has no verb.
"""

import base64
import hashlib
import re
from pathlib import Path

CONTENT = Path(__file__).with_name("status_page.html").read_bytes()
CONTENT_TYPE = "text/html; charset=utf-8"


def _hashes(tag: str) -> str:
    found = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), CONTENT, flags=re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in found)


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; "
        "connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
        "'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""With trusted types the browser itself refuses to make markup of text."""
