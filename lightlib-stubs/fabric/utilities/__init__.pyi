# Written by scripts/typing_stubs.py --write.
from lightlib.core.values.hparams import AttributeDict
from lightlib.fabric.throughput import ThroughputMonitor
from lightlib.fabric.utilities import apply_func, cloud_io, consolidate_checkpoint, data, device_dtype_mixin, device_parser, distributed, enums, exceptions, imports, init, load, logger, optimizer, rank_zero, registry, seed, spike, testing, throughput, types, warnings
from lightlib.profilers import Throughput
from lightlib.profilers.flops import measure_flops
from lightlib_lightning.tools.measures import is_shared_filesystem
from lightlib_lightning.tools.small_functions import move_data_to_device, suggested_max_num_workers
from lightlib_lightning.tools.values import disable_possible_user_warnings
from lightning_utilities.core.enums import StrEnum as LightningEnum
from lightning_utilities.core.rank_zero import rank_zero_deprecation, rank_zero_info, rank_zero_only, rank_zero_warn
__all__ = ['AttributeDict', 'LightningEnum', 'Throughput', 'ThroughputMonitor', 'apply_func', 'cloud_io', 'consolidate_checkpoint', 'data', 'device_dtype_mixin', 'device_parser', 'disable_possible_user_warnings', 'distributed', 'enums', 'exceptions', 'imports', 'init', 'is_shared_filesystem', 'load', 'logger', 'measure_flops', 'move_data_to_device', 'optimizer', 'rank_zero', 'rank_zero_deprecation', 'rank_zero_info', 'rank_zero_only', 'rank_zero_warn', 'registry', 'seed', 'spike', 'suggested_max_num_workers', 'testing', 'throughput', 'types', 'warnings']
