// One step of a breadth-first search: counts the edges into vertices that are not visited yet. All threads that reach a
// vertex store the same 1. Wrong: a plain read of the same array, which returns the old or the new value.
// from, to: (n,) ends of the edges, visited, next: (vertices,), found: (1,) of 0
__global__ void wrong(const int* from, const int* to, const int* visited, int* next, int* found, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && visited[from[i]] && !next[to[i]]) {  // BUG, OTHER
        next[to[i]] = 1;                              // BUG, OTHER
        atomicAdd(found, 1);
    }
}

__global__ void right(const int* from, const int* to, const int* visited, int* next, int* found, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && visited[from[i]] && !visited[to[i]]) {
        next[to[i]] = 1;
        atomicAdd(found, 1);
    }
}
