"""Finds dead local links and anchors in a built site: `site_links.py docs/_build/html`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The addresses that an HTML page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.links |= {values[name] for name in ("href", "src") if name in values}
        self.anchors |= {values[name] for name in ("id", "name") if name in values and tag != "meta"}


def dead_links(site: Path) -> list[str]:
    """Return the links of all pages of a site that lead nowhere, as ``page: link``, sorted."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site).as_posix()}: {link}"
        for path, page in pages.items()
        for link in sorted(page.links)
        if not leads_somewhere(link, path, pages)
    ]


def leads_somewhere(link: str, page: Path, pages: dict[Path, Page]) -> bool:
    """Return whether a link of a page leads to a file, and to an anchor of it; those to other sites are not opened."""
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return True
    target = (page.parent / unquote(address.path)).resolve() if address.path else page
    anchor = unquote(address.fragment)
    if not anchor or target.suffix != ".html":
        return target.is_file()
    return target in pages and anchor in pages[target].anchors


def main(site: str) -> int:
    """Print the dead links of a site and return the exit code."""
    folder = Path(site).resolve()
    found = dead_links(folder)
    for link in found:
        print(f"dead link: {link}", file=sys.stderr)
    print(f"{sum(1 for _ in folder.rglob('*.html'))} pages, {len(found)} dead links: {site}/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
