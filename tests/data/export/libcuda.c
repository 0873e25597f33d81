/* A libcuda.so.1 for tests of exported launchers on a machine without a driver. Device memory is host memory, and the
 * one kernel that it runs is scale(const float *x, float *y, float factor, int n). It checks what the launchers send.
 *
 * FAKE_CAPABILITY: the device's compute capability, "90" unless set. FAKE_FAIL: the function that fails with error 1,
 * CUDA_ERROR_INVALID_VALUE. FAKE_WRONG: set to have scale compute a wrong result. */

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUcontext current;

static CUresult code(const char *function) {
    const char *fails = getenv("FAKE_FAIL");
    return fails != NULL && strcmp(fails, function) == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
#define CHECK(function) if (code(function) != CUDA_SUCCESS) return code(function)

CUresult cuInit(unsigned int flags) { (void)flags; CHECK("cuInit"); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    (void)device;
    snprintf(name, (size_t)length, "a fake GPU");
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    *context = (CUcontext)&current;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { (void)device; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { CHECK("cuCtxSynchronize"); return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return current == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    const char *text = getenv("FAKE_CAPABILITY");
    const int capability = text != NULL ? atoi(text) : 90;
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
                                                                         : 227 * 1024;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    CHECK("cuMemAlloc");
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) { free((void *)(uintptr_t)address); return CUDA_SUCCESS; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    memcpy((void *)(uintptr_t)to, from, size);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    memcpy(to, (const void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    CHECK("cuTensorMapEncodeTiled");
    if (address == NULL || steps[0] != 1) return CUDA_ERROR_INVALID_VALUE;
    fprintf(stderr, "map: type %d rank %u dims %llu %llu stride %llu box %u %u modes %d %d %d %d\n", (int)type, rank,
            (unsigned long long)dims[0], (unsigned long long)dims[1], (unsigned long long)strides[0], box[0], box[1],
            (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    static const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
    CHECK("cuModuleLoadData");
    *module = (CUmodule)malloc(1);
    return memcmp(image, magic, sizeof magic) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
CUresult cuModuleUnload(CUmodule module) { free(module); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    *function = (CUfunction)(uintptr_t)name; /* the header's own text stays */
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)attribute;
    (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value != 227 * 1024)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "another error";
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra) {
    const char *name = (const char *)(uintptr_t)function;
    unsigned int at;
    CHECK("cuLaunchKernelEx");
    if (extra != NULL || config->gridDimX == 0 || config->blockDimX == 0) return CUDA_ERROR_INVALID_VALUE;
    fprintf(stderr, "%s: grid %ux%ux%u block %ux%ux%u shared %u", name, config->gridDimX, config->gridDimY,
            config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes);
    for (at = 0; at < config->numAttrs; at++) {
        if (config->attrs[at].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            fprintf(stderr, " cluster %u", config->attrs[at].value.clusterDim.x);
        if (config->attrs[at].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            fprintf(stderr, " cooperative %d", config->attrs[at].value.cooperative);
    }
    fprintf(stderr, "\n");
    if (strstr(name, "scale") != NULL) {
        const float *x = *(const float **)values[0];
        float *y = *(float **)values[1];
        const float factor = *(const float *)values[2];
        const int n = *(const int *)values[3], threads = (int)(config->gridDimX * config->blockDimX);
        int i;
        for (i = 0; i < n && i < threads; i++) y[i] = factor * x[i] + (getenv("FAKE_WRONG") != NULL ? 1.0f : 0.0f);
    }
    return CUDA_SUCCESS;
}
