"""Read a page as a browser would."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        else:
            self.texts.append(data)

    @property
    def specification(self) -> dict:
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "specification"))

    @property
    def code(self) -> list[str]:
        return [text for attributes, text in self.scripts if attributes.get("type") != "application/json"]

    @property
    def policy(self) -> str:
        return next(str(a["content"]) for tag, a in self.elements if tag == "meta" and "http-equiv" in a)


def sha256(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
