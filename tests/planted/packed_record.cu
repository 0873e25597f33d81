// Reads the double in each packed record: a 4-byte tag, then the value. Wrong: the value is aligned to 4 bytes only.
// records: (n, 12) bytes, y: (n,)
__global__ void wrong(const unsigned char* records, double* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = *reinterpret_cast<const double*>(records + 12 * i + 4);  // BUG
}

__global__ void right(const unsigned char* records, double* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int* words = reinterpret_cast<const int*>(records + 12 * i + 4);
    y[i] = __hiloint2double(words[1], words[0]);
}
