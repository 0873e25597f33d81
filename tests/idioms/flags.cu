// Threads that wait for other threads of the grid: flags, scopes, locks, a look-back scan, a stack.
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/semaphore>

// A block publishes its row with a fence and a volatile flag; the next block waits for it, and adds its own.
// x: (gridDim.x, blockDim.x), y: the same shape, flags: (gridDim.x,) of 0; cooperative
__global__ void volatile_chain(const int* x, volatile int* y, volatile int* flags) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int sum = x[i];
    if (blockIdx.x > 0) {
        if (threadIdx.x == 0) {
            while (flags[blockIdx.x - 1] == 0) {
            }
            __threadfence();
        }
        __syncthreads();
        sum += y[i - blockDim.x];
    }
    y[i] = sum;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) flags[blockIdx.x] = 1;
}

// The same chain per thread, by a release store and an acquire load of device scope.
// x, y: (gridDim.x, blockDim.x), flags: the same shape, of 0; cooperative
__global__ void release_chain(const int* x, int* y, int* flags) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    using Flag = cuda::atomic_ref<int, cuda::thread_scope_device>;
    int sum = x[i];
    if (blockIdx.x > 0) {
        Flag before(flags[i - blockDim.x]);
        while (before.load(cuda::memory_order_acquire) == 0) {
        }
        sum += y[i - blockDim.x];
    }
    y[i] = sum;
    Flag(flags[i]).store(1, cuda::memory_order_release);
}

// Warps of a block pass a value along by atomics of block scope; the count in the first cell is relaxed.
// y: (gridDim.x, warps); block: warps times 32
__global__ void block_scope(int* y, int* counts) {
    __shared__ int turn, value;
    if (threadIdx.x == 0) {
        turn = 0;
        value = blockIdx.x + 1;
    }
    __syncthreads();
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_block> mine(turn);
        while (mine.load(cuda::memory_order_acquire) != warp) {
        }
        value = 2 * value + warp;
        y[blockIdx.x * warps + warp] = value;
        mine.store(warp + 1, cuda::memory_order_release);
        cuda::atomic_ref<int, cuda::thread_scope_device>(counts[0]).fetch_add(1, cuda::memory_order_relaxed);
    }
}

// Running sums in one launch, by decoupled look-back: state and value are in one 64-bit word, so no fence is needed.
// x, y: (n,), ticket: (1,) of 0, words: (blocks,) of 0; block: a multiple of 32
__global__ void look_back(const int* x, int* y, int* ticket, unsigned long long* words, int n) {
    __shared__ int sums[32], block, prefix;
    if (threadIdx.x == 0) block = atomicAdd(ticket, 1);
    __syncthreads();
    const int i = block * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = i < n ? x[i] : 0;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += sums[w];
    if (threadIdx.x == blockDim.x - 1) {
        using Word = cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>;
        constexpr unsigned long long kSum = 1ull << 32, kPrefix = 2ull << 32;
        Word(words[block]).store(kSum | static_cast<unsigned>(sum), cuda::memory_order_relaxed);
        int before = 0;
        for (int b = block - 1; b >= 0; --b) {
            unsigned long long word;
            do word = Word(words[b]).load(cuda::memory_order_relaxed);
            while (word == 0);
            before += static_cast<int>(word);
            if (word & kPrefix) break;
        }
        Word(words[block]).store(kPrefix | static_cast<unsigned>(before + sum), cuda::memory_order_relaxed);
        prefix = before;
    }
    __syncthreads();
    if (i < n) y[i] = prefix + sum;
}

// A ticket lock: a record of three plain numbers is updated in the order of the tickets.
// record: (3,), next, serving: (1,) of 0; grid and block: any, one thread per warp takes part
__global__ void ticket_lock(long long* record, unsigned* next, unsigned* serving) {
    if (threadIdx.x % 32 != 0) return;
    const unsigned mine =
        cuda::atomic_ref<unsigned, cuda::thread_scope_device>(*next).fetch_add(1, cuda::memory_order_relaxed);
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> turn(*serving);
    while (turn.load(cuda::memory_order_acquire) != mine) __nanosleep(20);
    record[0] += 1;
    record[1] = record[0] * record[0];
    record[2] += record[1];
    turn.store(mine + 1, cuda::memory_order_release);
}

// A table that the first thread in need of it builds, once: a checked flag, then the lock, then the flag again.
// table: (8,), built, mutex, times: (1,) of 0, y: (n,)
__global__ void built_once(int* table, int* built, int* mutex, int* times, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(*built), lock(*mutex);
    if (threadIdx.x % 32 == 0 && ready.load(cuda::memory_order_acquire) == 0) {
        while (lock.exchange(1, cuda::memory_order_acquire) != 0) {
        }
        if (ready.load(cuda::memory_order_relaxed) == 0) {
            for (int k = 0; k < 8; ++k) table[k] = k * k + 1;
            *times += 1;
            ready.store(1, cuda::memory_order_release);
        }
        lock.store(0, cuda::memory_order_release);
    }
    __syncwarp();
    if (i >= n) return;
    if (ready.load(cuda::memory_order_acquire) == 1) y[i] = table[i % 8];
}

struct Node {
    int value, next;
};

// A stack without locks: heads have a version in their upper half, so that a head that returns is not mistaken.
// nodes: (threads,), head: (1,): version 0, index -1; popped: (threads,), of which each thread takes one
__global__ void lock_free_stack(Node* nodes, unsigned long long* head, int* popped) {
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> top(*head);
    nodes[me].value = 3 * me + 1;
    unsigned long long old = top.load(cuda::memory_order_relaxed), changed;
    do {
        cuda::atomic_ref<int, cuda::thread_scope_device>(nodes[me].next).store(int(old), cuda::memory_order_relaxed);
        changed = ((old >> 32) + 1) << 32 | static_cast<unsigned>(me);
    } while (!top.compare_exchange_weak(old, changed, cuda::memory_order_release, cuda::memory_order_relaxed));
    old = top.load(cuda::memory_order_acquire);
    int index;
    do {
        index = static_cast<int>(old);
        const int next =
            cuda::atomic_ref<int, cuda::thread_scope_device>(nodes[index].next).load(cuda::memory_order_relaxed);
        changed = ((old >> 32) + 1) << 32 | static_cast<unsigned>(next);
    } while (!top.compare_exchange_weak(old, changed, cuda::memory_order_acquire, cuda::memory_order_acquire));
    popped[me] = nodes[index].value;
}

// A sequence lock: one writer, readers that repeat until the sequence number is even and unchanged.
// pair: (2,) of zeros, sequence: (1,) of 0, seen: (readers,): 1 if the two halves matched; block 0 writes
__global__ void sequence_lock(int* pair, unsigned* sequence, int* seen, int rounds) {
    using Number = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;
    using Half = cuda::atomic_ref<int, cuda::thread_scope_device>;
    Number number(*sequence);
    if (blockIdx.x == 0) {
        if (threadIdx.x != 0) return;
        for (int k = 1; k <= rounds; ++k) {
            number.store(2 * k - 1, cuda::memory_order_relaxed);
            cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device);
            Half(pair[0]).store(k, cuda::memory_order_relaxed);
            Half(pair[1]).store(-k, cuda::memory_order_relaxed);
            number.store(2 * k, cuda::memory_order_release);
        }
        return;
    }
    unsigned before, after;
    int a, b;
    do {
        before = number.load(cuda::memory_order_acquire);
        a = Half(pair[0]).load(cuda::memory_order_relaxed);
        b = Half(pair[1]).load(cuda::memory_order_relaxed);
        cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device);
        after = number.load(cuda::memory_order_relaxed);
    } while (before != after || before % 2 != 0);
    seen[(blockIdx.x - 1) * blockDim.x + threadIdx.x] = a == -b;
}

__device__ cuda::counting_semaphore<cuda::thread_scope_device, 3> permits(3);

// At most three blocks at a time in a section; the largest number seen there.
// inside, most, done: (1,) of 0
__global__ void semaphore(int* inside, int* most, int* done) {
    if (threadIdx.x == 0) {
        permits.acquire();
        atomicMax(most, atomicAdd(inside, 1) + 1);
        atomicSub(inside, 1);
        permits.release();
        atomicAdd(done, 1);
    }
}

// A grid barrier from one counter: each block adds 1 and waits for the next multiple of the grid's size.
// x, y: (gridDim.x, blockDim.x), count: (1,) of 0; cooperative
__global__ void counter_barrier(int* x, int* y, unsigned* count, int rounds) {
    const int threads = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int round = 0; round < rounds; ++round) {
        y[i] = x[(i + 1) % threads] + round;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            const unsigned before = atomicAdd(count, 1), goal = (before / gridDim.x + 1) * gridDim.x;
            while (*reinterpret_cast<volatile unsigned*>(count) < goal) {
            }
            __threadfence();
        }
        __syncthreads();
        int* swap = x;
        x = y;
        y = swap;
    }
}
