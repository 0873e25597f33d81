"""Driver calls about memory pools and their attributes."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.driver.arguments import Handle, size_t
from cudakit.sim.driver.faults import CallError, Result, caller
from cudakit.sim.driver.objects import Pool
from cudakit.sim.driver.order import OrderChecks
from cudakit.sim.driver.state import call

_POOL = cu.CUmemPool_attribute
_INT_POOL_ATTRIBUTES = {
    int(_POOL.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES),
    int(_POOL.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC),
    int(_POOL.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES),
}


class PoolCalls(OrderChecks):
    """cuMemPool*."""

    def _pool(self, handle: Handle) -> Pool:
        return self._object(handle, Pool, "a memory pool")

    @call(1, context=False)
    def cuMemPoolCreate(self, poolProps: Any) -> Any:
        if poolProps is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "poolProps is None")
        location = poolProps.location
        if location.type != cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, "only pools of device memory are simulated")
        device = self._device(location.id)
        pool = Pool(self._new_handle(), device, place=caller())
        self._objects[pool.handle] = pool
        device.pools.append(pool)
        return cu.CUmemoryPool(pool.handle)

    @call(context=False)
    def cuMemPoolDestroy(self, pool: Handle) -> None:
        found = self._pool(pool)
        if found is found.device.default_pool:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "the default pool cannot be destroyed")
        if found.device.pool is found:
            found.device.pool = found.device.default_pool
        found.device.pools.remove(found)
        del self._objects[found.handle]

    @call(context=False)
    def cuDeviceSetMemPool(self, dev: Handle, pool: Handle) -> None:
        device, found = self._device(dev), self._pool(pool)
        if found.device is not device:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"the pool is of device {found.device.ordinal}")
        device.pool = found

    @call(context=False)
    def cuMemPoolSetAttribute(self, pool: Handle, attr: Any, value: Any) -> None:
        found, number = self._pool(pool), int(attr)
        if number in _INT_POOL_ATTRIBUTES:
            found.flags[number] = int(value)
            return
        value.getPtr()  # AttributeError for a plain int, as in the bindings, which require a cuuint64_t
        if number == int(_POOL.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD):
            found.threshold = int(value)
        elif number == int(_POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) and int(value) == 0:
            found.reserved_high = found.reserved
        elif number == int(_POOL.CU_MEMPOOL_ATTR_USED_MEM_HIGH) and int(value) == 0:
            found.used_high = found.used
        else:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{attr!r} cannot be set to {int(value)}")

    @call(1, context=False)
    def cuMemPoolGetAttribute(self, pool: Handle, attr: Any) -> Any:
        found, number = self._pool(pool), int(attr)
        if number in _INT_POOL_ATTRIBUTES:
            return found.flags.get(number, 1)
        values = {
            _POOL.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: found.threshold,
            _POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: found.reserved,
            _POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: found.reserved_high,
            _POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT: found.used,
            _POOL.CU_MEMPOOL_ATTR_USED_MEM_HIGH: found.used_high,
        }
        value = {int(key): value for key, value in values.items()}.get(number)
        if value is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{attr!r} is not a simulated pool attribute")
        return cu.cuuint64_t(value)

    @call(context=False)
    def cuMemPoolTrimTo(self, pool: Handle, minBytesToKeep: int) -> None:
        self._pool(pool).trim(size_t(minBytesToKeep))

    @call(context=False)
    def cuMemPoolSetAccess(self, pool: Handle, map: Any, count: int) -> None:
        self._pool(pool)
        for descriptor in map or ():
            self._device(descriptor.location.id)
