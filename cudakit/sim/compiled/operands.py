"""The operands of lane-wise instructions."""

from __future__ import annotations

from cudakit.sim.compiled.arithmetic import NAN32, Unsupported
from cudakit.sim.compiled.ir import Value, like
from cudakit.sim.compiled.kernel_code import KernelCode
from cudakit.sim.compiled.layout import WIDTH
from cudakit.sim.ptx.ir import Instruction, Negated, Operand, Register
from cudakit.sim.values.lanewise import width


class Held:
    """A register's value: as an integer, as a float, or both; ``canonical``: its NaN is the canonical one."""

    __slots__ = ("canonical", "floating", "integer")

    def __init__(self, integer: Value | None, floating: Value | None, canonical: bool) -> None:
        self.integer, self.floating, self.canonical = integer, floating, canonical


class RegisterOperands:
    """The operands of lane-wise instructions in one loop over vectors (``chunk``), or of uniform ones."""

    def __init__(self, kernel: KernelCode, chunk: Value | None = None, uniform: RegisterOperands | None = None) -> None:
        self.kernel, self.code, self.chunk = kernel, kernel.code, chunk
        self.uniform = uniform or self
        self.width = WIDTH if chunk is not None else 0
        self.values: dict[str, Held] = {}
        self.written: set[str] = set()
        # the condition of the current instruction
        self.guard: Value | None = None

    def take_guard(self, instruction: Instruction) -> None:
        """Set the condition under which an instruction's results are written."""
        self.guard = None
        if instruction.guard is not None:
            register, negated = instruction.guard
            condition = self.read(register, "pred")
            self.guard = ~condition if negated else condition

    def _splat(self, value: Value) -> Value:
        return value.splat(WIDTH) if self.width else value

    def held(self, name: str) -> Held:
        found = self.values.get(name)
        if found is None:
            kernel = self.kernel
            if self.width and not kernel.varies(name):
                one = self.uniform.held(name)
                integer = None if one.integer is None else self._splat(one.integer)
                floating = None if one.floating is None else self._splat(one.floating)
                found = Held(integer, floating, one.canonical)
            else:
                found = Held(kernel.load(name, self.chunk), None, True)
            self.values[name] = found
        return found

    def read(self, operand: Operand | None, kind: str) -> Value:
        bits = 1 if kind == "pred" else max(width(kind), 16)
        if isinstance(operand, Register):
            held = self.held(operand.name)
            if held.integer is None:
                held.integer = self._bits_of(held)
            return self._fit(held.integer, bits)
        if isinstance(operand, Negated):
            return ~self.read(operand.register, "pred")
        return self._fit(self._splat_once(self.kernel.constant(operand, bits)), bits)

    def _splat_once(self, value: Value) -> Value:
        return value if value.kind.startswith("<") else self._splat(value)

    def _fit(self, value: Value, bits: int) -> Value:
        return value.to(f"i{bits}")

    def read_float(self, operand: Operand | None, kind: str) -> Value:
        if isinstance(operand, Register):
            held = self.held(operand.name)
            if held.floating is None:
                held.floating = self._as_float(self.read(operand, kind), kind)
            return held.floating
        return self._as_float(self.read(operand, kind), kind)

    @staticmethod
    def _as_float(value: Value, kind: str) -> Value:
        return value.bits(like(value.kind, "float" if kind == "f32" else "double"))

    @staticmethod
    def _bits_of(held: Held) -> Value:
        """The bits of a float, whose NaN becomes the canonical one."""
        floating = held.floating
        assert floating is not None
        bits = floating.bits(like(floating.kind, "i32" if "float" in floating.kind else "i64"))
        if not held.canonical:
            bits = floating.is_("uno", floating).select(NAN32, bits)
            held.floating = None
            held.canonical = True
        return bits

    def write(self, operand: Operand | None, value: Value) -> None:
        if operand is None:
            return
        if not isinstance(operand, Register):
            raise Unsupported("a destination that is not a register")
        bits = self.kernel.bits(operand.name)
        if value.kind.removeprefix(f"<{WIDTH} x ").removesuffix(">") != f"i{bits}":
            raise Unsupported(f"{value.kind} to a register of {bits} bits")
        if self.guard is not None:
            value = self.guard.select(value, self.read(operand, operand.type))
        self._set(operand.name, Held(value, None, True))

    def write_float(self, operand: Operand | None, value: Value) -> None:
        if not isinstance(operand, Register) or self.kernel.bits(operand.name) != 32:
            raise Unsupported("a destination that is not a register of 32 bits")
        held = Held(None, value, False)
        if self.guard is not None:
            # as bits: the lanes that keep their value also keep the payload of a NaN
            return self.write(operand, self._bits_of(held))
        self._set(operand.name, held)

    def _set(self, name: str, held: Held) -> None:
        if not self.width and self.kernel.varies(name):
            raise Unsupported(f"one value for {name}, which differs between lanes")
        self.values[name] = held
        self.written.add(name)
