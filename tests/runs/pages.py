"""Reads the tags of an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser


class Tags(HTMLParser):
    """The tags of a page with their attributes, its texts, and its scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.attributes, self.scripts = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.scripts += [""] * (tag == "script")
        self.attributes += attrs

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)
