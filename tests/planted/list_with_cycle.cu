// Marks the elements of linked lists. Wrong: counts the visits instead, without an end in a list with a cycle.
// next: (n,) of indices, -1 at the end; marks: (n,) of zeros; heads: (32,); block: 32
__global__ void wrong(const int* next, int* marks, const int* heads) {
    for (int i = heads[threadIdx.x]; i >= 0; i = next[i]) atomicAdd(&marks[i], 1);  // BUG
}

__global__ void right(const int* next, int* marks, const int* heads) {
    for (int i = heads[threadIdx.x]; i >= 0 && atomicExch(&marks[i], 1) == 0; i = next[i]) {
    }
}
