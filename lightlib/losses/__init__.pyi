# Written by scripts/typing_stubs.py --write.
from lightlib.losses.chunked import linear_cross_entropy
from lightlib.losses.log_probs import sequence_log_probs, token_log_probs
from lightlib.losses.policy import dpo_loss, group_advantages, grpo_loss, token_kl
from lightlib.losses.reference import ReferenceModel
__all__ = ['ReferenceModel', 'dpo_loss', 'group_advantages', 'grpo_loss', 'linear_cross_entropy', 'sequence_log_probs', 'token_kl', 'token_log_probs']
