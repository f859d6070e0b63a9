# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.deepspeed_files import convert_zero_checkpoint_to_fp32_state_dict, ds_checkpoint_dir
from lightlib_lightning.tools.values import CPU_DEVICE
from lightlib_lightning.types import _PATH
__all__ = ['CPU_DEVICE', '_DEEPSPEED_AVAILABLE', '_PATH', 'convert_zero_checkpoint_to_fp32_state_dict', 'ds_checkpoint_dir']
_DEEPSPEED_AVAILABLE: bool
