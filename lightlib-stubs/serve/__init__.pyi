# Written by scripts/typing_stubs.py --write.
from lightlib.compat.absent import Absent
from lightlib.compat.tools.serving import ServableModule
from lightlib.serve import servable_module, servable_module_validator
__all__ = ['ServableModule', 'ServableModuleValidator', 'servable_module', 'servable_module_validator']
class ServableModuleValidator(Absent): ...
