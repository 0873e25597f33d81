// Depth of each node in a forest of parent links, by recursion. Wrong: a cycle in the links causes unbounded recursion.
// parent: (n,), -1 for roots, depth: (n,); the correct kernel follows at most n links
__device__ __noinline__ int depth_of(const int* parent, int node) {
    volatile int frame[64];
    frame[node % 64] = node;
    if (parent[node] < 0) return 0;
    return 1 + depth_of(parent, parent[node]) + (frame[node % 64] - node);  // BUG
}

__global__ void wrong(const int* parent, int* depth, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) depth[i] = depth_of(parent, i);
}

__device__ __noinline__ int bounded_depth(const int* parent, int node, int left) {
    if (parent[node] < 0 || left == 0) return 0;
    return 1 + bounded_depth(parent, parent[node], left - 1);
}

__global__ void right(const int* parent, int* depth, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) depth[i] = bounded_depth(parent, i, 16);
}
