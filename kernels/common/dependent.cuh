// Programmatic dependent launches (sm_90 and later; elsewhere both functions do nothing): a kernel that is launched so
// may start before its predecessor on the stream has ended, so that its start costs no time of its own.
#pragma once

// Returns after the predecessor has ended, and its results are visible. No thread may access memory that another kernel
// writes before it calls this, or synchronises with a thread that has; the kernel's own results come after it, too,
// because the predecessor may still read what they replace.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as all blocks of this one have called it, and there is room. One thread per block
// is enough.
__device__ __forceinline__ void start_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
