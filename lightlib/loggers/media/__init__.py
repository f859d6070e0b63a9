"""Media for loggers: images, figures, histograms, text, tables and audio; and drawing on images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightlib import lazy

if TYPE_CHECKING:
    from lightlib.loggers.media.draw import draw_bounding_boxes, draw_feature_map, draw_segmentation_masks, make_grid
    from lightlib.loggers.media.items import Audio, Figure, Histogram, Image, Media, Table, Text

__all__ = [
    "Audio",
    "Figure",
    "Histogram",
    "Image",
    "Media",
    "Table",
    "Text",
    "draw_bounding_boxes",
    "draw_feature_map",
    "draw_segmentation_masks",
    "make_grid",
]

_get, _names = lazy.attributes(
    __name__,
    {
        "Audio": "items",
        "Figure": "items",
        "Histogram": "items",
        "Image": "items",
        "Media": "items",
        "Table": "items",
        "Text": "items",
        "draw_bounding_boxes": "draw",
        "draw_feature_map": "draw",
        "draw_segmentation_masks": "draw",
        "make_grid": "draw",
    },
)

if not TYPE_CHECKING:  # type checkers see the names above only
    __getattr__, __dir__ = _get, _names
