# Written by scripts/typing_stubs.py --write.
from lightlib import CombinedLoader
from lightlib.core.values.hparams import AttributeDict
from lightlib.profilers.flops import measure_flops
from lightlib.utilities import _pytree, argparse, combined_loader, compile, consolidate_checkpoint, data, deepspeed, enums, exceptions, grads, imports, memory, migration, model_helpers, model_registry, model_summary, parameter_tying, parsing, rank_zero, seed, signature_utils, testing, types, upgrade_checkpoint, warnings
from lightlib_lightning.tools.measures import is_shared_filesystem
from lightlib_lightning.tools.small_functions import find_shared_parameters, grad_norm, is_picklable, move_data_to_device, set_shared_parameters, suggested_max_num_workers
from lightlib_lightning.tools.values import FLOAT16_EPSILON, FLOAT32_EPSILON, FLOAT64_EPSILON, GradClipAlgorithmType, disable_possible_user_warnings
from lightning_utilities.core.enums import StrEnum as LightningEnum
from lightning_utilities.core.rank_zero import rank_zero_deprecation, rank_zero_info, rank_zero_only, rank_zero_warn
__all__ = ['AttributeDict', 'CombinedLoader', 'FLOAT16_EPSILON', 'FLOAT32_EPSILON', 'FLOAT64_EPSILON', 'GradClipAlgorithmType', 'LightningEnum', '_pytree', 'argparse', 'combined_loader', 'compile', 'consolidate_checkpoint', 'data', 'deepspeed', 'disable_possible_user_warnings', 'enums', 'exceptions', 'find_shared_parameters', 'grad_norm', 'grads', 'imports', 'is_picklable', 'is_shared_filesystem', 'measure_flops', 'memory', 'migration', 'model_helpers', 'model_registry', 'model_summary', 'move_data_to_device', 'parameter_tying', 'parsing', 'rank_zero', 'rank_zero_deprecation', 'rank_zero_info', 'rank_zero_only', 'rank_zero_warn', 'seed', 'set_shared_parameters', 'signature_utils', 'suggested_max_num_workers', 'testing', 'types', 'upgrade_checkpoint', 'warnings']
