"""The addresses of a module's global and constant variables, and of its functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cudakit.sim.lockstep.memory import AddressSpace, Allocation
from cudakit.sim.ptx.declarations import HANDLES
from cudakit.sim.ptx.ir import NotSimulated, PtxError, PtxFunction, PtxModule, Variable
from cudakit.sim.ptx.opcodes import TEXTURES


class ModuleVariables(Mapping[str, "tuple[int, int]"]):
    """A module's variables: (address, size) by name. A variable's memory is allocated when it is first looked up or
    used."""

    def __init__(self, module: PtxModule, space: AddressSpace) -> None:
        self.module = module
        self.space = space
        self._placed: dict[str, int] = {}
        # the functions whose addresses are known, by address
        self.functions: dict[int, PtxFunction] = {}
        self._function_addresses: dict[str, int] = {}

    def function_address(self, function: PtxFunction) -> int:
        """The address of a function; NotSimulated if the module does not define it."""
        if not function.body:
            raise NotSimulated(f"the address of {function.name!r}, which this module declares but does not define")
        found = self._function_addresses.get(function.name)
        if found is None:
            found = self._function_addresses[function.name] = self.space.function_address()
            self.functions[found] = function
        return found

    def find_functions(self) -> None:
        """Find the functions whose addresses are in variables, which are not in memory yet."""
        for variable in self.module.variables.values():
            for _, symbol, _, _ in variable.relocations:
                function = self.module.functions.get(symbol)
                if function is not None and function.body:
                    self.function_address(function)

    def address_of(self, variable: Variable) -> int:
        """The address of a global or constant variable; allocates its memory if needed. Raises NotSimulated if it is
        defined elsewhere, is a texture, sampler or surface, or is initialised with an address that is not simulated."""
        found = self._placed.get(variable.name)
        if found is not None:
            return found
        if variable.type in HANDLES:
            raise NotSimulated(f"{variable.name!r} is a .{variable.type}: {TEXTURES}")
        if variable.extern:
            raise NotSimulated(f"{variable.name!r} is declared extern but is not defined")
        kind = "constant" if variable.space == "const" else "global"
        try:
            allocation = self.space.allocate(max(variable.size, 1), kind, f"as the variable {variable.name!r}")
        except MemoryError:
            why = f"this computer has no memory for {variable.name!r} of {variable.size:,} bytes"
            raise PtxError(f"PTX line {variable.line}: {why}", variable.line) from None
        self._placed[variable.name] = allocation.address
        data = variable.initial or b""
        if allocation.data[0]:
            # large memory is zero already, and the system provides it when it is used
            allocation.data[:] = 0
        allocation.data[: len(data)] = np.frombuffer(data, np.uint8)
        try:
            self._relocate(variable, allocation)
        except NotSimulated:
            # the next use of the variable must fail too
            del self._placed[variable.name]
            self.space.free(allocation.address)
            raise
        return allocation.address

    def _relocate(self, variable: Variable, allocation: Allocation) -> None:
        """Write the addresses that a variable is initialised with."""
        for offset, symbol, addend, _ in variable.relocations:
            target = self.module.variables.get(symbol)
            if symbol in self.module.functions:
                address = self.function_address(self.module.functions[symbol])
            elif target is None or target.space not in ("global", "const"):
                raise NotSimulated(f"{variable.name!r} holds the address of {symbol!r}, which is not a global variable")
            else:
                address = self.address_of(target) + addend
            allocation.data[offset : offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)

    def close(self) -> None:
        """Free the variables; calling it again has no effect."""
        placed, self._placed = self._placed, {}
        for address in placed.values():
            self.space.free(address, "by unloading its module")

    def _defined(self) -> dict[str, Variable]:
        variables = self.module.variables.items()
        defined = {n: v for n, v in variables if v.space in ("global", "const") and not v.extern}
        return {n: v for n, v in defined.items() if v.type not in HANDLES}

    def __getitem__(self, name: str) -> tuple[int, int]:
        variable = self._defined()[name]
        return self.address_of(variable), variable.size

    def __iter__(self) -> Iterator[str]:
        return iter(self._defined())

    def __len__(self) -> int:
        return len(self._defined())
