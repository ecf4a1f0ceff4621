"""Images as a browser gets them: made when asked for, the last ones kept in memory, nothing written."""

import io
import threading
from collections import OrderedDict
from typing import NamedTuple

from PIL import Image

from ..data.images import BadImage
from .image_source import Gallery

SIDES = {"small": 144, "large": 720}  # dots of the longer side
TINY = 64  # up to this side an image is enlarged dot by dot
MEMORY = 64_000_000  # bytes of pictures kept
AT_ONCE = 3  # images decoded at the same time: one may take 256 MB


class ShownPicture(NamedTuple):
    content: bytes
    media_type: str
    broken: bool = False


class ShownPictures:
    """ShownPictures of a gallery by number and size."""

    def __init__(self, gallery: Gallery, memory: int = MEMORY):
        self._gallery, self._memory = gallery, memory
        self._kept: OrderedDict[tuple[int, str], ShownPicture] = OrderedDict()
        self._bytes = 0
        self._lock, self._decoding = threading.Lock(), threading.Semaphore(AT_ONCE)

    def get(self, number: int, size: str) -> ShownPicture:
        key = (number, size)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        with self._decoding:
            picture = self._make(number, SIDES[size])
        self._keep(key, picture)
        return picture

    def _make(self, number: int, side: int) -> ShownPicture:
        try:
            return encoded(self._gallery.image(number), side)
        except BadImage:
            return ShownPicture(_png(_crossed_out()), "image/png", broken=True)

    def _keep(self, key: tuple[int, str], picture: ShownPicture) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = picture
            self._bytes += len(picture.content)
            while self._bytes > self._memory and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1].content)


def encoded(image: Image.Image, side: int) -> ShownPicture:
    """An image at most `side` dots wide and high; a tiny one is enlarged without blurring its dots."""
    plain = on_white(image)
    longest = max(plain.size)
    if longest <= TINY:
        factor = max(1, side // longest)
        return ShownPicture(
            _png(plain.resize((plain.width * factor, plain.height * factor), Image.Resampling.NEAREST)), "image/png"
        )
    plain.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    plain.save(file, "JPEG", quality=88)
    return ShownPicture(file.getvalue(), "image/jpeg")


def on_white(image: Image.Image) -> Image.Image:
    """A copy in grey or colour; white shows through where it is transparent, as the model sees it."""
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _crossed_out() -> Image.Image:
    """What stands for an image that cannot be opened."""
    blank = Image.new("L", (48, 48), 200)
    for place in range(12, 36):
        for thick in range(3):
            blank.putpixel((place, min(place + thick, 47)), 110)
            blank.putpixel((47 - place, min(place + thick, 47)), 110)
    return blank


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
