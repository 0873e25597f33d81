// The element-wise steps of a ptychography update, one kernel per step: easy to read, but each is a pass over memory.
//
// patches, exits, spectra: (positions, size) complex numbers, size = rows * cols; probe: (size,); measured: (positions,
// size) amplitudes. All contiguous. The kernels move 148 bytes per element in total, fused.cu 60; the probe, 16 more
// bytes in both, is read from cache.

__device__ long long element() {
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// exits = probe * patches
__global__ void times_probe(const float2* patches, const float2* probe, float2* exits, int size, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float2 a = patches[i], b = probe[i % size];
    exits[i] = make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// amplitudes = |spectra|
__global__ void amplitude(const float2* spectra, float* amplitudes, long long count) {
    const long long i = element();
    if (i < count) amplitudes[i] = hypotf(spectra[i].x, spectra[i].y);
}

// spectra /= amplitudes: keeps only the phases; phase 0 if the amplitude is 0
__global__ void phase(float2* spectra, const float* amplitudes, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float r = amplitudes[i];
    const float2 z = spectra[i];
    spectra[i] = r > 0.0f ? make_float2(z.x / r, z.y / r) : make_float2(1.0f, 0.0f);
}

// spectra *= factors
__global__ void times_real(float2* spectra, const float* factors, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float f = factors[i];
    const float2 z = spectra[i];
    spectra[i] = make_float2(f * z.x, f * z.y);
}

// z *= factor
__global__ void scale(float2* z, float factor, long long count) {
    const long long i = element();
    if (i < count) z[i] = make_float2(factor * z[i].x, factor * z[i].y);
}

// changed -= exits: the change made by the constraint
__global__ void difference(float2* changed, const float2* exits, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float2 a = changed[i], b = exits[i];
    changed[i] = make_float2(a.x - b.x, a.y - b.y);
}

// changed *= conj(probe) * step
__global__ void times_conjugate(float2* changed, const float2* probe, float step, int size, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float2 a = changed[i], b = probe[i % size];
    changed[i] = make_float2(step * (a.x * b.x + a.y * b.y), step * (a.y * b.x - a.x * b.y));
}

// updated = patches + changed
__global__ void add(const float2* patches, const float2* changed, float2* updated, long long count) {
    const long long i = element();
    if (i >= count) return;
    const float2 a = patches[i], b = changed[i];
    updated[i] = make_float2(a.x + b.x, a.y + b.y);
}
