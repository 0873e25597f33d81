// The element-wise steps of a filter in the frequency domain: threshold and conversion to complex, low-pass, back to
// real.
//
// images: (batch, rows, cols), contiguous; spectra: the same shape of complex numbers, (real, imaginary) pairs. A
// complex number is twice as wide as a real one, so each real is converted separately: copying the bytes would combine
// two neighbours into one complex number. Each step reads and writes every element once: memory-bound. The transforms
// between the steps move more.

// out = (x < cut ? 0 : x) + 0i: a value equal to the cut stays, and so does NaN, as in ops.threshold
__global__ void threshold_to_complex(const float* images, float2* spectra, float cut, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float x = images[i];
    spectra[i] = make_float2(x < cut ? 0.0f : x, 0.0f);
}

// The frequency of index i of n, in cycles per element: 0 comes first; the second half is the negative frequencies.
__device__ float frequency(int i, int n) {
    return static_cast<float>(i < (n + 1) / 2 ? i : i - n) / static_cast<float>(n);
}

// The gain at element i of spectra with `stored` elements per row: 1 / (1 + (d / cutoff)^4). d: the distance from
// frequency 0, which is element (0, 0), not the middle.
__device__ float gain_at(long long i, float cutoff, int rows, int cols, int stored) {
    const int row = static_cast<int>(i / stored % rows), col = static_cast<int>(i % stored);
    const float v = frequency(row, rows) / cutoff, u = frequency(col, cols) / cutoff;
    const float d2 = u * u + v * v;
    return 1.0f / (1.0f + d2 * d2);
}

// spectra *= gain
__global__ void low_pass(float2* spectra, float cutoff, int rows, int cols, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float gain = gain_at(i, cutoff, rows, cols, cols);
    const float2 z = spectra[i];
    spectra[i] = make_float2(gain * z.x, gain * z.y);
}

// low_pass for the spectra of a real transform, which have the first cols / 2 + 1 elements of each row. Element cols /
// 2 of an even number has the frequency -1/2 in place of 1/2, with the same gain.
__global__ void low_pass_half(float2* spectra, float cutoff, int rows, int cols, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float gain = gain_at(i, cutoff, rows, cols, cols / 2 + 1);
    const float2 z = spectra[i];
    spectra[i] = make_float2(gain * z.x, gain * z.y);
}

// images = real part * scale; scale undoes the inverse transform's factor of rows * cols.
__global__ void normalize(const float2* spectra, float* images, float scale, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) images[i] = spectra[i].x * scale;
}
