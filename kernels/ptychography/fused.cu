// The element-wise steps of a ptychography update in three kernels: before, between and after the two Fourier
// transforms, which cannot be fused with them.
//
// Shapes as in separate.cu. Intermediate results stay in registers instead of going through memory between kernels: 60
// bytes per element instead of 148. The exit wave is computed twice: four multiplications are cheaper than reading it.

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

// spectra = measured * spectra / |spectra| * scale: sets the measured amplitude and keeps the phase (0 if the spectrum
// is 0). scale: 1 / size, since the inverse transform that follows does not normalise.
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
