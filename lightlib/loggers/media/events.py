"""Media as summaries of TensorBoard's event files, made without PIL."""

from __future__ import annotations

import struct
from typing import Any

from lightlib.loggers.media.items import Audio, Figure, Histogram, Image, Media, Table, Text


def summary_of(name: str, media: Media) -> Any:
    """Return the `Summary` for an item.

    Args:
        name: Its tag.
        media: The item; tables become text in Markdown.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # optional: tensorboard
    from torch.utils.tensorboard import summary  # optional: tensorboard

    if isinstance(media, (Image, Figure)):
        png = media.encoded()
        width, height = struct.unpack(">II", png[16:24])  # of the header, which is the first chunk
        colorspace = media.pixels.shape[2] if isinstance(media, Image) else 4
        image = Summary.Image(height=height, width=width, colorspace=colorspace, encoded_image_string=png)
        return Summary(value=[Summary.Value(tag=name, image=image)])
    if isinstance(media, Audio):
        channels, frames = media.samples.shape
        audio = Summary.Audio(
            sample_rate=media.sample_rate,
            num_channels=channels,
            length_frames=frames,
            encoded_audio_string=media.encoded(),
            content_type="audio/wav",
        )
        return Summary(value=[Summary.Value(tag=name, audio=audio)])
    if isinstance(media, Histogram):
        return summary.histogram_raw(  # type: ignore[no-untyped-call]  # torch has no types for it
            name,
            media.smallest,
            media.largest,
            sum(media.counts),
            media.sum,
            media.sum_of_squares,
            media.edges[1:],
            media.counts,
        )
    assert isinstance(media, (Text, Table)), "the logger lists its kinds"
    return summary.text(name, media.text if isinstance(media, Text) else media.markdown())  # type: ignore[no-untyped-call]  # likewise
