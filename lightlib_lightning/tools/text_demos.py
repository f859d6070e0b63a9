"""Lightning's demonstration of text: a transformer and the WikiText2 data set."""

from __future__ import annotations

import math
import urllib.request
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightlib.core.module.module import Module

__all__ = [
    "Dictionary",
    "LightningTransformer",
    "PositionalEncoding",
    "Transformer",
    "WikiText2",
    "tokenize",
]

_URL = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/train.txt"
_WORDS = 33278


class Dictionary:
    """The words of a text and their numbers, in the order in which they first appear.

    Example:
        >>> words = Dictionary()
        >>> words.add_word("b"), words.add_word("a"), words.add_word("b"), len(words)
        (0, 1, 0, 2)
    """

    def __init__(self) -> None:
        self.word2idx: dict[str, int] = {}
        self.idx2word: list[str] = []

    def add_word(self, word: str) -> int:
        """Return the number of a word, which is entered if it is new."""
        number = self.word2idx.setdefault(word, len(self.idx2word))
        if number == len(self.idx2word):
            self.idx2word.append(word)
        return number

    def __len__(self) -> int:
        """Return the number of different words."""
        return len(self.idx2word)


def tokenize(path: Path) -> tuple[Tensor, Dictionary]:
    """Return the numbers of all words of a file, with ``<eos>`` after each line, and their dictionary."""
    dictionary = Dictionary()
    with open(path, encoding="utf-8") as file:
        numbers = [dictionary.add_word(word) for line in file for word in (*line.split(), "<eos>")]
    return torch.tensor(numbers, dtype=torch.int64), dictionary


class WikiText2(Dataset[tuple[Tensor, Tensor]]):
    """Blocks of a text as numbers; the target of a block is the block one word later.

    Args:
        data_dir: The folder of ``wikitext-2.txt``.
        block_size: The words of a block.
        download: Download the file if it is not there.
    """

    def __init__(self, data_dir: Path = Path("data"), block_size: int = 35, download: bool = True) -> None:
        self.path = Path(data_dir) / "wikitext-2.txt"
        if download:
            self.download(self.path)
        self.data, self.dictionary = tokenize(self.path)
        self.block_size = block_size

    @property
    def vocab_size(self) -> int:
        """The number of different words."""
        return len(self.dictionary)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.data) // self.block_size - 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a block and its target."""
        start = index * self.block_size
        stop = start + self.block_size
        return self.data[start:stop], self.data[start + 1 : stop + 1]

    @staticmethod
    def download(destination: Path) -> None:
        """Download the text, unless the file exists."""
        if destination.exists():
            return
        destination.parent.mkdir(parents=True, exist_ok=True)
        urllib.request.urlretrieve(_URL, destination)


class PositionalEncoding(nn.Module):
    """Adds the sines and cosines of the sequence's length to every position, then drops out.

    Args:
        dim: The features.
        dropout: The share of numbers that become zero in training.
        max_len: The longest sequence.
    """

    def __init__(self, dim: int, dropout: float = 0.1, max_len: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.dim = dim
        self.max_len = max_len
        self.pe: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map `(N, T, dim)` to the same shape."""
        if self.pe is None:
            self.pe = self._table(x.device)
        return self.dropout(x + self.pe[:, x.size(1)])  # type: ignore[no-any-return]

    def _table(self, device: torch.device) -> Tensor:
        places = torch.arange(0, self.max_len, dtype=torch.float, device=device).unsqueeze(1)
        even = torch.arange(0, self.dim, 2, device=device).float()
        angles = places * torch.exp(even * (-math.log(10000.0) / self.dim))
        table = torch.zeros(self.max_len, self.dim, device=device)
        table[:, 0::2] = torch.sin(angles)
        table[:, 1::2] = torch.cos(angles)
        return table.unsqueeze(0)


class Transformer(nn.Module):
    """A small transformer that predicts words.

    Args:
        vocab_size: The number of words.
        ninp: Features of a word.
        nhead: Heads of attention.
        nhid: Hidden features of each layer.
        nlayers: Layers of the encoder, and of the decoder.
        dropout: The share of numbers that become zero in training.
    """

    def __init__(
        self,
        vocab_size: int = _WORDS,
        ninp: int = 200,
        nhead: int = 2,
        nhid: int = 200,
        nlayers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.pos_encoder = PositionalEncoding(ninp, dropout)
        self.embedding = nn.Embedding(vocab_size, ninp)
        self.transformer = nn.Transformer(ninp, nhead, nlayers, nlayers, nhid, dropout, batch_first=True)
        self.decoder = nn.Linear(ninp, vocab_size)
        self.ninp = ninp
        self.vocab_size = vocab_size
        self.src_mask: Tensor | None = None

    def generate_square_subsequent_mask(self, size: int) -> Tensor:
        """Return the mask that hides the words to come: 0 where a word is seen, else minus infinity."""
        return torch.full((size, size), float("-inf")).triu(diagonal=1)

    def forward(self, inputs: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logarithms of the probabilities of the words, `(N * T, vocab_size)`."""
        length = inputs.shape[1]
        if self.src_mask is None or self.src_mask.size(0) != length:
            self.src_mask = self.generate_square_subsequent_mask(length).to(inputs.device)
        if mask is None:
            mask = self.generate_square_subsequent_mask(length).to(inputs.device)
        scale = math.sqrt(self.ninp)
        source = self.pos_encoder(self.embedding(inputs) * scale)
        encoded = self.pos_encoder(self.embedding(target) * scale)
        output = self.decoder(self.transformer(source, encoded, tgt_mask=mask))
        return nn.functional.log_softmax(output, dim=-1).view(-1, self.vocab_size)


class LightningTransformer(Module):
    """Trains :class:`Transformer` on :class:`WikiText2` with SGD.

    Args:
        vocab_size: The number of words.
    """

    def __init__(self, vocab_size: int = _WORDS) -> None:
        super().__init__()
        self.model = Transformer(vocab_size=vocab_size)

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of the words."""
        return self.model(inputs, target)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch of blocks and targets."""
        inputs, target = batch
        return nn.functional.nll_loss(self(inputs, target), target.view(-1))

    def configure_optimizers(self) -> Any:
        """Return SGD of learning rate 0.1."""
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def prepare_data(self) -> None:
        """Download the text."""
        WikiText2(download=True)

    def train_dataloader(self) -> Any:
        """Return batches of one block."""
        return DataLoader(WikiText2())
