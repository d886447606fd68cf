"""Tokenizers of Mistral's own format (``tekken.json``, ``tokenizer.model.v3``), read by ``mistral-common``.

The package is imported when such a model is served and not before. Its tokenizer never reads special tokens
out of text: they come from the structure of a request alone.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from render_tier.core.vocabulary import Vocabulary, vocabulary_of_bytes, vocabulary_of_pieces
from render_tier.model.files import ModelLoadError

if TYPE_CHECKING:
    from mistral_common.protocol.instruct.chunk import ImageURLChunk
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.image import ImageEncoding
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer as Library

IMAGE_TOKEN = "[IMG]"
FILES = ("tekken.json", "tokenizer.model.v*", "tokenizer.mm.model.v*")
"""In order of preference; of several versions the last one is taken."""
OWN_FORMAT = ("params.json", "consolidated*.safetensors")
"""Files of a repository in Mistral's own layout."""
NOT_INSTALLED = (
    "{path} is a tokenizer of mistral-common, which is not installed: "
    "pip install 'disagg-frontend[mistral]' ({error})"
)


def tokenizer_file(directory: Path, *, demanded: bool) -> Path | None:
    """The tokenizer of Mistral's format that ``directory`` is to be served with: where none is demanded, one
    that lies in a repository of Mistral's layout, or beside no tokenizer.json.

    Raises ModelLoadError when one is demanded that is not there.
    """
    found = next((files[-1] for pattern in FILES if (files := sorted(directory.glob(pattern)))), None)
    if demanded and found is None:
        raise ModelLoadError(f"{directory} has no tokenizer of Mistral's format ({', '.join(FILES)})")
    if found is None or demanded or not (directory / "tokenizer.json").exists():
        return found
    return found if any(True for pattern in OWN_FORMAT for _ in directory.glob(pattern)) else None


class ImageSizes(NamedTuple):
    """How a tokenizer of Mistral's cuts up images, in pixels."""

    patch: int
    """Of a side."""
    longest_side: int
    merged: int
    """Patches of a side that become one token."""


class ImagePlaces:
    """In place of the library's encoder of images: an image is one token, and its URL is its number. Encodes
    for one request of each thread at a time."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id
        self._here = threading.local()

    def begin(self) -> list[int]:
        """Where the numbers of the images that are encoded next are put."""
        numbers: list[int] = []
        self._here.numbers = numbers
        return numbers

    def __call__(self, chunk: ImageURLChunk) -> ImageEncoding:
        from mistral_common.tokens.tokenizers.image import ImageEncoding
        from numpy import empty

        self._here.numbers.append(int(chunk.get_url()))
        return ImageEncoding(tokens=[self._token_id], image=empty(0))


class MistralTokenizer:
    """A `model.engines.ReferenceTokenizer`, and what turns a checked chat into IDs."""

    name = "mistral-common"
    specials = 1
    """Tokens that are put around a text: the BOS."""

    def __init__(self, library: Library[Any, Any, Any, Any, Any], raw: bytes) -> None:
        self.library = library
        self.raw = raw
        """The file's bytes, for the fingerprint."""
        self._tokenizer = library.instruct_tokenizer.tokenizer
        self.version = int(self._tokenizer.version.value.lstrip("v").partition("m")[0])
        self.bos_id: int = self._tokenizer.bos_id
        self.eos_id: int = self._tokenizer.eos_id
        self.image_sizes = _image_sizes(library)
        """None for a tokenizer of a model that takes no images in Mistral's own format."""
        self._places: ImagePlaces | None = None
        if self.has(IMAGE_TOKEN):
            self._places = ImagePlaces(self._tokenizer.get_special_token(IMAGE_TOKEN))
            library.instruct_tokenizer.image_encoder = cast("Any", self._places)

    @classmethod
    def load(cls, path: Path) -> MistralTokenizer:
        """Raises ModelLoadError when the package is missing or cannot read the file."""
        try:
            from mistral_common.protocol.instruct.validator import ValidationMode
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer as Library
        except ImportError as error:
            raise ModelLoadError(NOT_INSTALLED.format(path=path, error=error)) from error
        try:
            return cls(Library.from_file(str(path), mode=ValidationMode.test), path.read_bytes())
        except ImportError as error:  # sentencepiece, for the older files
            raise ModelLoadError(NOT_INSTALLED.format(path=path, error=error)) from error
        except Exception as error:  # assertions and bare exceptions of the library
            raise ModelLoadError(f"{path} cannot be read by mistral-common: {error}") from error

    @property
    def is_tekken(self) -> bool:
        return hasattr(self._tokenizer, "id_to_byte_piece")

    def vocabulary(self) -> Vocabulary:
        """What each ID spells, for derender."""
        tokenizer: Any = self._tokenizer
        size = tokenizer.n_words
        if self.is_tekken:
            specials = [tokenizer.id_to_piece(token_id) for token_id in range(tokenizer.num_special_tokens)]
            rest = range(len(specials), size)
            return vocabulary_of_bytes(specials, [tokenizer.id_to_byte_piece(token_id) for token_id in rest])
        special = frozenset(token_id for token_id in range(size) if tokenizer.is_special(token_id))
        return vocabulary_of_pieces(list(map(tokenizer.id_to_piece, range(size))), special)

    def longest_piece(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._tokenizer.vocab()))

    def has(self, special: str) -> bool:
        """Whether there is such a special token."""
        return bool(self._tokenizer.is_special(special))

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, bos=add_special_tokens, eos=False)
        return ids

    def encoded(
        self, text: str, *, add_special_tokens: bool, keep: int | None, offsets: bool
    ) -> tuple[list[int], None]:
        """``keep``: how many tokens of the text's end stay, special ones not counted. Never offsets."""
        ids = self.ids(text, add_special_tokens=False)
        if keep is not None:
            ids = ids[max(len(ids) - keep, 0) :]
        return ([self.bos_id, *ids] if add_special_tokens else ids), None

    def piece(self, token_id: int) -> str:
        return str(self._tokenizer.id_to_piece(token_id))

    def chat(self, request: ChatCompletionRequest[Any]) -> tuple[list[int], list[int]]:
        """The IDs, with one token for each image, and the images' URLs, which are numbers, in their order
        there. Raises what the library raises for a conversation that the model was not trained on."""
        numbers = [] if self._places is None else self._places.begin()
        return self.library.encode_chat_completion(request).tokens, numbers


def _image_sizes(library: Library[Any, Any, Any, Any, Any]) -> ImageSizes | None:
    encoder = library.instruct_tokenizer.image_encoder
    if encoder is None:
        return None
    config = encoder.image_config
    return ImageSizes(config.image_patch_size, config.max_image_size, config.spatial_merge_size)
