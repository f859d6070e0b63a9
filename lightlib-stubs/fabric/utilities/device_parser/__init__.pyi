# Written by scripts/typing_stubs.py --write.
from lightlib.errors import MisconfigurationException
from lightlib_lightning.internals.devices import check_data_type as _check_data_type, check_unique as _check_unique, root_gpu as _determine_root_gpu_device, available_gpus as _get_all_available_gpus, list_of_text as _normalize_parse_gpu_string_input, parse_gpu_ids as _parse_gpu_ids
from lightlib_lightning.types import _DEVICE
__all__ = ['MisconfigurationException', '_DEVICE', '_check_data_type', '_check_unique', '_determine_root_gpu_device', '_get_all_available_gpus', '_normalize_parse_gpu_string_input', '_parse_gpu_ids']
