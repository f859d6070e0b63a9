# Written by scripts/typing_stubs.py --write.
from lightlib.loggers.media.draw import draw_bounding_boxes, draw_feature_map, draw_segmentation_masks, make_grid
from lightlib.loggers.media.items import Audio, Figure, Histogram, Image, Media, Table, Text
__all__ = ['Audio', 'Figure', 'Histogram', 'Image', 'Media', 'Table', 'Text', 'draw_bounding_boxes', 'draw_feature_map', 'draw_segmentation_masks', 'make_grid']
