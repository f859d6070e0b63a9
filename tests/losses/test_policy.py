"""The losses of DPO and GRPO, advantages and the KL estimate against formulas written out with loops."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from lightlib.errors import ArgumentTypeError, MisconfigurationException, UnknownNameError
from lightlib.losses import dpo_loss, group_advantages, grpo_loss, token_kl


def draw(*shape, seed=0, scale=1.0):
    """Log-probabilities that need gradients."""
    generator = torch.Generator().manual_seed(seed)
    return (-scale * torch.rand(shape, generator=generator)).requires_grad_()


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


class TestDPO:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("beta", [0.1, 2.0])
    def test_it_is_the_formula(self, beta, smoothing):
        four = [draw(6, seed=seed, scale=9) for seed in range(4)]
        losses, slopes = [], []
        for chosen, rejected, reference_chosen, reference_rejected in zip(*(one.tolist() for one in four), strict=True):
            x = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
            losses.append(-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x))
            slopes.append(
                beta * (smoothing - math.exp(log_sigmoid(-x)))
            )  # the sigmoid of -x is its slope at x, divided by it
        found = dpo_loss(*four, beta=beta, label_smoothing=smoothing, reduction="none")
        assert found.tolist() == pytest.approx(losses, rel=1e-5)
        (gradient,) = torch.autograd.grad(found.sum(), four[0])
        assert gradient.tolist() == pytest.approx(slopes, rel=1e-4)
        options = {"beta": beta, "label_smoothing": smoothing}
        means, sums = (dpo_loss(*four, **options, reduction=name).tolist() for name in ("mean", "sum"))
        assert (means, sums) == pytest.approx((statistics.fmean(losses), math.fsum(losses)), rel=1e-5)

    def test_a_policy_that_is_its_reference_has_log_2_and_large_margins_stay_finite(self):
        chosen, rejected = draw(3), draw(3, seed=1)
        assert dpo_loss(chosen, rejected, chosen, rejected).tolist() == pytest.approx(math.log(2))
        zero = torch.zeros(1)
        assert dpo_loss(zero - 1e6, zero, zero, zero, beta=1.0).tolist() == pytest.approx(1e6)
        assert dpo_loss(zero + 1e6, zero, zero, zero, beta=1.0).tolist() == 0

    @pytest.mark.parametrize(
        ("changed", "kind", "message"),
        [
            ({"reference_chosen": torch.zeros(2)}, MisconfigurationException, r"reference_chosen has the shape \(2,\)"),
            ({"policy_rejected": 1.0}, ArgumentTypeError, r"policy_rejected=1.0"),
            ({"beta": 0}, MisconfigurationException, "beta=0"),
            ({"label_smoothing": 0.5}, MisconfigurationException, "label_smoothing=0.5"),
            ({"reduction": "men"}, UnknownNameError, "'mean'"),
        ],
    )
    def test_bad_input(self, changed, kind, message):
        names = ("policy_chosen", "policy_rejected", "reference_chosen", "reference_rejected")
        with pytest.raises(kind, match=message):
            dpo_loss(**{name: torch.zeros(3) for name in names} | changed)

    def test_log_probabilities_of_tokens_are_refused(self):
        tokens = torch.zeros(3, 5)
        with pytest.raises(MisconfigurationException, match=r"\(3, 5\)(?s:.)*sequence_log_probs"):
            dpo_loss(tokens, tokens, tokens, tokens)


class TestAdvantages:
    @pytest.mark.parametrize("scale", [True, False])
    def test_they_are_the_formula(self, scale):
        rewards = [0.5, 1.0, 0.0, 2.0, -1.0, 3.0]
        expected = []
        for group in (rewards[:3], rewards[3:]):
            mean, deviation = statistics.fmean(group), statistics.stdev(group)
            expected += [(reward - mean) / (deviation + 1e-4 if scale else 1) for reward in group]
        found = group_advantages(torch.tensor(rewards), 3, scale=scale)
        assert found.tolist() == pytest.approx(expected, rel=1e-5)

    def test_equal_rewards_have_advantages_of_zero(self):
        rewards = torch.tensor([0.1] * 3 + [1.0, 0.0, 0.0])  # the mean of three times 0.1 is rounded
        found = group_advantages(rewards, 3)
        assert found[:3].tolist() == [0, 0, 0]
        assert found[3] > 1
        assert group_advantages(rewards, 3, epsilon=0)[:3].tolist() == [0, 0, 0]  # and no 0 / 0

    def test_whole_numbers_and_16_bits_are_taken(self):
        for rewards in (torch.tensor([1, 0, 1, 1]), torch.tensor([True, False, True, True])):
            assert group_advantages(rewards, 2, scale=False).tolist() == [0.5, -0.5, 0, 0]
        assert group_advantages(torch.tensor([1.0, 0.0]).bfloat16(), 2).dtype is torch.float32

    @pytest.mark.parametrize(
        ("rewards", "size", "kind", "message"),
        [
            (torch.zeros(7), 3, MisconfigurationException, r"the shape \(7,\), with group_size=3(?s:.)*repeat_interl"),
            (torch.zeros(2, 3), 3, MisconfigurationException, r"the shape \(2, 3\)"),
            (torch.zeros(6), 1, MisconfigurationException, "group_size=1(?s:.)*int >= 2"),
            ([1.0, 2.0], 2, ArgumentTypeError, r"rewards=\[1.0, 2.0\]"),
            (torch.zeros(6), 2.0, ArgumentTypeError, "group_size=2.0"),
        ],
    )
    def test_bad_input(self, rewards, size, kind, message):
        with pytest.raises(kind, match=message):
            group_advantages(rewards, size)


def test_the_kl_estimate_is_the_formula_and_without_bias():
    policy, reference = draw(3, 4), draw(3, 4, seed=1)
    pairs = zip(policy.flatten().tolist(), reference.flatten().tolist(), strict=True)
    expected = [math.exp(theirs - ours) - (theirs - ours) - 1 for ours, theirs in pairs]
    assert token_kl(policy, reference).flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert token_kl(policy, policy).abs().max() == 0
    one, other = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    exact = (one.exp() * (one - other)).sum()
    torch.testing.assert_close((one.exp() * token_kl(one, other)).sum(), exact)  # its mean over the policy's tokens


class TestGRPO:
    LENGTHS = (4, 2, 0)
    ADVANTAGES = (1.5, -0.5, 1.0)

    def by_loops(self, policy, old, reference, beta, low, high):
        """The loss of each token that counts, by answer."""
        policy, old, reference = policy.tolist(), old.tolist(), reference.tolist()
        losses = []
        for i, length in enumerate(self.LENGTHS):
            losses.append([])
            for t in range(length):
                ratio = math.exp(policy[i][t] - old[i][t])
                gain = min(ratio * self.ADVANTAGES[i], min(max(ratio, 1 - low), 1 + high) * self.ADVANTAGES[i])
                away = reference[i][t] - policy[i][t]
                losses[-1].append(beta * (math.exp(away) - away - 1) - gain)
        return losses

    @pytest.mark.parametrize("beta", [0.0, 0.04])
    @pytest.mark.parametrize("high", [None, 0.5])
    def test_it_is_the_formula(self, beta, high):
        policy, old, reference = (draw(3, 4, seed=seed) for seed in range(3))
        mask = torch.arange(4) < torch.tensor(self.LENGTHS)[:, None]
        losses = self.by_loops(policy, old, reference, beta, 0.2, high or 0.2)
        ratios = (policy - old).exp()[mask]
        assert ratios.min() < 0.8  # some are clipped, on both sides
        assert ratios.max() > 1.5
        options = {"old_log_probs": old, "reference_log_probs": reference, "beta": beta, "epsilon_high": high}

        def found(reduction):
            return grpo_loss(policy, torch.tensor(self.ADVANTAGES), mask, **options, reduction=reduction)

        tokens = [loss for one in losses for loss in one]
        assert found("none")[mask].tolist() == pytest.approx(tokens, rel=1e-4, abs=1e-6)
        assert found("none")[~mask].abs().max() == 0
        means = [statistics.fmean(one) if one else 0.0 for one in losses]
        assert found("sequence").tolist() == pytest.approx(statistics.fmean(means), rel=1e-4)
        assert found("token").tolist() == pytest.approx(statistics.fmean(tokens), rel=1e-4)

    def test_the_gradient_is_the_policy_gradient_where_nothing_is_clipped(self):
        policy, advantages = draw(2, 3), torch.tensor([2.0, -1.0])
        grpo_loss(policy, advantages).backward()
        assert policy.grad.equal(-advantages[:, None].expand(2, 3) / 6)

    def test_a_clipped_ratio_has_no_gradient(self):
        policy = torch.zeros(2, 2, requires_grad=True)
        old = torch.tensor([[-1.0, 1.0], [-1.0, 1.0]])  # ratios of 2.7 and 0.4
        grpo_loss(policy, torch.tensor([1.0, -1.0]), old_log_probs=old, reduction="token").backward()
        assert (policy.grad != 0).tolist() == [[False, True], [True, False]]

    def test_tokens_outside_of_the_mask_may_be_infinite(self):
        policy = torch.tensor([[-1.0, -torch.inf], [-1.0, -2.0]], requires_grad=True)
        mask = torch.tensor([[1, 0], [1, 1]])
        loss = grpo_loss(policy, torch.ones(2), mask, reference_log_probs=policy.detach() - 1)
        loss.backward()
        assert loss.isfinite()
        assert policy.grad.isfinite().all()

    def test_answers_without_tokens_have_a_loss_of_zero(self):
        policy = draw(2, 3)
        for reduction in ("sequence", "token"):
            loss = grpo_loss(policy, torch.ones(2), torch.zeros(2, 3), reduction=reduction)
            loss.backward()
            assert loss == 0
        assert policy.grad.abs().max() == 0

    @pytest.mark.parametrize(
        ("changed", "kind", "message"),
        [
            ({"advantages": torch.ones(3)}, MisconfigurationException, r"\(2, 3\), advantages have \(3,\)"),
            ({"log_probs": torch.ones(2)}, MisconfigurationException, r"\(2,\), advantages have \(2,\)(?s:.)*length"),
            ({"mask": torch.ones(2)}, MisconfigurationException, r"mask has the shape \(2,\)"),
            ({"old_log_probs": torch.ones(3, 2)}, MisconfigurationException, r"old_log_probs has the shape \(3, 2\)"),
            ({"reference_log_probs": torch.ones(2, 2)}, MisconfigurationException, r"reference_log_probs has the sh"),
            ({"advantages": [1.0, 2.0]}, ArgumentTypeError, r"advantages=\[1.0, 2.0\]"),
            ({"epsilon": 1.5}, MisconfigurationException, "epsilon=1.5"),
            ({"beta": -1}, MisconfigurationException, "beta=-1"),
            ({"reduction": "tokens"}, UnknownNameError, "'token'"),
        ],
    )
    def test_bad_input(self, changed, kind, message):
        with pytest.raises(kind, match=message):
            grpo_loss(**{"log_probs": torch.ones(2, 3), "advantages": torch.ones(2)} | changed)
