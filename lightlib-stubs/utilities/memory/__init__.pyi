# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.tools.small_functions import garbage_collection_cuda, is_cuda_out_of_memory, is_oom_error, is_out_of_cpu_memory, recursive_detach
from lightlib_lightning.tools.values import is_cudnn_snafu
from lightning_utilities.core.apply_func import apply_to_collection
__all__ = ['apply_to_collection', 'garbage_collection_cuda', 'is_cuda_out_of_memory', 'is_cudnn_snafu', 'is_oom_error', 'is_out_of_cpu_memory', 'recursive_detach']
