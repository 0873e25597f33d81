// The element-wise steps of a ptychography update in three kernels: one before, one between and one after the two
// Fourier transforms, which nothing can be fused over.
//
// Shapes as in separate.cu. What separate kernels write only for the next one to read stays in registers: 60 bytes an
// element instead of 148. The exit wave is worked out twice, which costs four multiplications and saves reading it.

__device__ long long element() {
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ float2 product(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// exits = probe * patches
__global__ void illuminate(const float2* patches, const float2* probe, float2* exits, int size, long long count) {
    const long long i = element();
    if (i < count) exits[i] = product(patches[i], probe[i % size]);
}

// spectra = measured * spectra / |spectra| * scale: the measured amplitude and the phase that is there (0 where there
// is none). scale: 1 / size, which the inverse transform that follows leaves out.
__global__ void constrain(float2* spectra, const float* measured, float scale, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float2 z = spectra[i];
    const float r = hypotf(z.x, z.y), m = measured[i] * scale;
    const float f = m / r;
    spectra[i] = r > 0.0f ? make_float2(f * z.x, f * z.y) : make_float2(m, 0.0f);
}

// updated = patches + step * conj(probe) * (changed - probe * patches)
__global__ void update(const float2* patches, const float2* probe, const float2* changed, float2* updated, float step,
    int size, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float2 o = patches[i], p = probe[i % size], now = changed[i];
    const float2 exit = product(o, p);
    const float x = now.x - exit.x, y = now.y - exit.y;
    updated[i] = make_float2(o.x + step * (p.x * x + p.y * y), o.y + step * (p.x * y - p.y * x));
}
