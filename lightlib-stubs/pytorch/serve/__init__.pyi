# Written by scripts/typing_stubs.py --write.
from lightlib.pytorch.serve import servable_module, servable_module_validator
from lightlib_lightning.absent import Absent
from lightlib_lightning.tools.serving import ServableModule
__all__ = ['ServableModule', 'ServableModuleValidator', 'servable_module', 'servable_module_validator']
class ServableModuleValidator(Absent): ...
