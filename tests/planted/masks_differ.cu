// Ranks the positive values of a warp. Wrong: lanes with a positive value pass the mask of those lanes to the vote, all
// others the mask of the whole warp.
// x: (gridDim.x, 32), y: (gridDim.x, 32): the number of positive values before each; block: 32
__global__ void wrong(const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const bool positive = x[i] > 0;
    const unsigned all = __ballot_sync(0xffffffffu, positive);
    const unsigned members = positive ? all : 0xffffffffu;
    const unsigned votes = __ballot_sync(members, positive);  // BUG
    y[i] = __popc(votes & ((1u << threadIdx.x) - 1));
}

__global__ void right(const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const bool positive = x[i] > 0;
    const unsigned all = __ballot_sync(0xffffffffu, positive);
    const unsigned members = positive ? all : ~all;
    const unsigned votes = __ballot_sync(members, positive) | (positive ? 0 : all);
    y[i] = __popc(votes & ((1u << threadIdx.x) - 1));
}
