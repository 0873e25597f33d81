// One step of a breadth-first search: marks the neighbours of the frontier. Wrong: stores a different value per edge.
// Correct: all threads that reach a vertex store the same 1.
// from, to: (n,) ends of the edges, frontier, next: (vertices,), changed: (1,) of 0
__global__ void wrong(const int* from, const int* to, const int* frontier, int* next, int* changed, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && frontier[from[i]]) {
        next[to[i]] = from[i] + 1;  // BUG, OTHER
        *changed = 1;
    }
}

__global__ void right(const int* from, const int* to, const int* frontier, int* next, int* changed, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && frontier[from[i]]) {
        next[to[i]] = 1;
        *changed = 1;
    }
}
