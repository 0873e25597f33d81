// D = alpha A B^T + beta C by CUTLASS's kernel for Hopper: its collective mainloop and epilogue, made by its builders.
// SCHEDULE: Cooperative or Pingpong. CLUSTER_M, CLUSTER_N: blocks per cluster. STAGES: of the mainloop.
// SOURCE: bfloat16, or void if there is no C. A (m, k), B (n, k), C and D (m, n) are row-major and contiguous.
#include <cuda.h>
#include <cuda/std/type_traits>

// what CUTLASS uses of the standard library, and does not declare for NVRTC
namespace std {
using cuda::std::is_const_v;
using cuda::std::is_pointer_v;
using cuda::std::void_t;
}  // namespace std

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)

using bfloat16 = cutlass::bfloat16_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Block = cute::Shape<cute::Int<TILE_M>, cute::Int<TILE_N>, cute::Int<64>>;
using Cluster = cute::Shape<cute::Int<CLUSTER_M>, cute::Int<CLUSTER_N>, cute::Int<1>>;
using Hopper = cutlass::arch::Sm90;
using TensorCores = cutlass::arch::OpClassTensorOp;

using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<Hopper, TensorCores, Block, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, SOURCE, Row, 8, bfloat16, Row, 8,
    cutlass::epilogue::NAMED(TmaWarpSpecialized, EPILOGUE)>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<Hopper, TensorCores, bfloat16, Row, 8, bfloat16, Column,
    8, float, Block, Cluster, cutlass::gemm::collective::StageCount<STAGES>,
    cutlass::gemm::NAMED(KernelTmaWarpSpecialized, SCHEDULE)>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
using Params = Kernel::Params;

template <typename Copy>
__device__ void set_map(const Copy& copy, const CUtensorMap& map) {
    // without the driver's header, CUTLASS has a struct of its own with 128 bytes
    auto* to = const_cast<cute::TmaDescriptor*>(copy.get_tma_descriptor());
    *to = reinterpret_cast<const cute::TmaDescriptor&>(map);
}

// The host's part, by one thread: CUTLASS computes the kernel's parameters, except the tensor maps, which need the
// driver. sizes: bytes of the parameters and of shared memory, threads, and the grid for `multiprocessors`.
extern "C" __global__ void prepare(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
    const __grid_constant__ CUtensorMap c, const __grid_constant__ CUtensorMap d, int m, int n, int k, float alpha,
    float beta, int multiprocessors, char* params, int* sizes) {
    const cute::Shape<int, int, int, int> problem{m, n, k, 1};
    Mainloop::Arguments factors{};
    factors.dA = {k, cute::Int<1>{}, 0};
    factors.dB = {k, cute::Int<1>{}, 0};
    Epilogue::Arguments results{};
    results.dC = {n, cute::Int<1>{}, 0};
    results.dD = {n, cute::Int<1>{}, 0};
    results.thread.alpha = alpha;
    results.thread.beta = beta;
    cutlass::KernelHardwareInfo chip{};
    chip.sm_count = multiprocessors;
    Params made{};
    made.problem_shape = problem;
    made.mainloop = Mainloop::to_underlying_arguments(problem, factors, nullptr);
    made.epilogue = Epilogue::to_underlying_arguments(problem, results, nullptr);
    made.hw_info = chip;
    made.scheduler = Kernel::TileScheduler::to_underlying_arguments(problem, Block{}, Cluster{}, chip, {}, nullptr);
    set_map(made.mainloop.tma_load_a, a);
    set_map(made.mainloop.tma_load_b, b);
    if constexpr (!cute::is_void_v<SOURCE>) {
        set_map(made.epilogue.tma_load_c, c);
    }
    set_map(made.epilogue.tma_store_d, d);
    *reinterpret_cast<Params*>(params) = made;
    dim3 grid = Kernel::get_grid_shape(made);
    sizes[0] = sizeof(Params);
    sizes[1] = Kernel::SharedStorageSize;
    sizes[2] = Kernel::MaxThreadsPerBlock;
    sizes[3] = grid.x;
    sizes[4] = grid.y;
    sizes[5] = grid.z;
}

extern "C" __global__ void __launch_bounds__(Kernel::MaxThreadsPerBlock, 1) gemm(
    const __grid_constant__ Params params) {
    extern __shared__ char shared[];
    Kernel{}(params, shared);
}
