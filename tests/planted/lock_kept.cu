// Blocks append to a list under a lock. Wrong: a block that finds the list full does not release the lock.
// list: (capacity,), size: (1,) of 0, mutex: (1,) of 0; blocks of 1
__global__ void wrong(int* list, int* size, int* mutex, int capacity) {
    while (atomicCAS(mutex, 0, 1) != 0) {  // BUG
    }
    __threadfence();
    const int at = *size;
    if (at == capacity) return;
    list[at] = 7;
    *size = at + 1;
    __threadfence();
    atomicExch(mutex, 0);
}

__global__ void right(int* list, int* size, int* mutex, int capacity) {
    while (atomicCAS(mutex, 0, 1) != 0) {
    }
    __threadfence();
    const int at = *size;
    if (at < capacity) {
        list[at] = 7;
        *size = at + 1;
    }
    __threadfence();
    atomicExch(mutex, 0);
}
