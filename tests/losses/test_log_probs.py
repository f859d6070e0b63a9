"""Log-probabilities of tokens and sequences against the formula, their gradients, dtypes and refusals."""

from __future__ import annotations

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.losses import linear_cross_entropy, sequence_log_probs, token_log_probs


def tensors(dtype=torch.float32):
    """Scores of 3 sequences of 5 tokens, labels of which some are ignored, and a mask; the last one has no token."""
    draw = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(3, 5, 7, generator=draw)).to(dtype).requires_grad_()
    labels = torch.randint(7, (3, 5), generator=draw)
    labels[0, 0] = labels[1, 3] = -100
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    return logits, labels, mask


def plain(logits, labels):
    """The softmax written out, in 64 bits, with a loop over tokens."""
    scores = logits.double()
    return torch.stack([
        torch.stack([
            (row[label].exp() / row.exp().sum()).log() if label >= 0 else row.sum() * 0
            for row, label in zip(rows, numbers, strict=True)
        ])
        for rows, numbers in zip(scores, labels.tolist(), strict=True)
    ])  # fmt: skip


def close(found, expected):
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-5, atol=1e-5)


def test_tokens_have_the_log_probabilities_of_the_softmax():
    logits, labels, _ = tensors()
    found = token_log_probs(logits, labels)
    close(found, plain(logits, labels))
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    assert found.equal(chosen.masked_fill(labels < 0, 0))  # the bits of torch's two operations
    factor = torch.randn(3, 5)
    gradient, expected = (torch.autograd.grad((it * factor).sum(), logits)[0] for it in (found, plain(logits, labels)))
    close(gradient, expected)
    assert token_log_probs(logits[0, 1], labels[0, 1]).equal(found[0, 1])  # a single token


def test_sequences_sum_the_tokens_that_count():
    logits, labels, mask = tensors()
    counted = mask * (labels >= 0)
    sums = (plain(logits, labels) * counted).sum(1)
    close(sequence_log_probs(logits, labels, mask), sums)
    close(sequence_log_probs(logits, labels, mask.bool()), sums)
    close(sequence_log_probs(logits, labels, mask, average=True), sums / torch.tensor([4, 2, 1]))
    close(sequence_log_probs(logits, labels), plain(logits, labels).sum(1))
    assert sequence_log_probs(logits, labels, mask)[2] == 0


def test_a_token_that_does_not_count_has_no_gradient_even_where_it_is_infinite():
    logits, labels, mask = tensors()
    values = logits.detach().clone()
    values[1, 0, labels[1, 0]] = -torch.inf
    values.requires_grad_()
    (gradient,) = torch.autograd.grad(sequence_log_probs(values, labels, mask).sum(), values)
    assert gradient.isfinite().all()
    assert gradient[mask == 0].abs().max() == 0
    assert gradient[labels < 0].abs().max() == 0


def test_16_bits_are_computed_in_32_and_64_stay():
    logits, labels, _ = tensors(torch.bfloat16)
    found = token_log_probs(logits, labels)
    assert found.dtype is torch.float32
    assert found.equal(token_log_probs(logits.float(), labels))
    assert token_log_probs(logits.double(), labels).dtype is torch.float64


def test_the_chunked_loss_gives_the_same_numbers():
    hidden, weight, labels = torch.randn(2, 5, 4), torch.randn(9, 4), torch.randint(9, (2, 5))
    in_chunks = -linear_cross_entropy(hidden, weight, labels, reduction="none", chunk_size=3)
    close(in_chunks, token_log_probs(hidden @ weight.T, labels))


LOGITS, LABELS = torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((LOGITS, LABELS[:, 1:]), MisconfigurationException, r"labels have the shape \(2, 2\)(?s:.)*\(2, 3\), one"),
        ((LOGITS, LABELS.float()), ArgumentTypeError, r"labels=torch.float32(?s:.)*labels.long\(\)"),
        ((LOGITS.tolist(), LABELS), ArgumentTypeError, r"logits=\[\[\[(?s:.)*a tensor"),
        ((LOGITS, LABELS, LABELS[0]), MisconfigurationException, r"mask has the shape \(3,\), and labels has \(2, 3\)"),
        ((LOGITS, LABELS, [1]), ArgumentTypeError, r"mask=\[1\]"),
    ],
)
def test_bad_input(arguments, kind, message):
    with pytest.raises(kind, match=message):
        sequence_log_probs(*arguments)
