// The angle between two vectors of the plane. Wrong: the cosine is a little more than 1 by rounding.
// a, b: (n, 2), y: (n,)
__global__ void wrong(const float2* a, const float2* b, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float product = a[i].x * b[i].x + a[i].y * b[i].y;
    const float cosine =
        product * rsqrtf(a[i].x * a[i].x + a[i].y * a[i].y) * rsqrtf(b[i].x * b[i].x + b[i].y * b[i].y);
    y[i] = acosf(cosine);  // BUG
}

__global__ void right(const float2* a, const float2* b, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float product = a[i].x * b[i].x + a[i].y * b[i].y;
    const float cosine =
        product * rsqrtf(a[i].x * a[i].x + a[i].y * a[i].y) * rsqrtf(b[i].x * b[i].x + b[i].y * b[i].y);
    y[i] = acosf(fminf(1.0f, fmaxf(-1.0f, cosine)));
}
