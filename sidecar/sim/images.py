"""Images in messages: data URLs become bytes that shape the prompt. Nothing is fetched here."""

import base64
import binascii
import re
from hashlib import blake2b
from typing import Any

IMAGE_TOKEN_BYTES = 64
"""So many bytes of an image are one token of the prompt."""
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)


class ImageError(ValueError):
    """A URL that gives no image; the text is for the client."""


def read_image(url: Any) -> bytes:
    """The bytes of a base64 data URL; raises ImageError for anything else."""
    if not isinstance(url, str):
        raise ImageError("image_url: Input should be an object with a `url`")
    if url[:5].lower() != "data:":
        scheme = url.partition(":")[0][:16]
        raise ImageError(f"sim: an image by {scheme!r} URL is not fetched, use a data URL")
    found = _DATA_URL.match(url)
    if found is None:
        raise ImageError("Only base64 data URLs of images are supported for now.")
    try:
        data = base64.b64decode(url[found.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"Failed to load image: {error}") from None
    if not data:
        raise ImageError("Failed to load image: no data")
    return data


def name_of(image: bytes) -> str:
    """What stands for an image in a canonical prompt, however its URL was written."""
    return "image:" + blake2b(image, digest_size=16).hexdigest()


def tokens_of_image(image: bytes) -> int:
    """How many tokens of a prompt it is."""
    return 1 + len(image) // IMAGE_TOKEN_BYTES
