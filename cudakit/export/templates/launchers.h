@banner@
#ifndef @NAME@_H
#define @NAME@_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
@includes@
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#ifdef __cplusplus
#include <type_traits>
#define @NAME@_ALIGNED(bytes) alignas(bytes)
extern "C" {
#else
#define @NAME@_ALIGNED(bytes) _Alignas(bytes)
#endif

enum { @NAME@_IMAGES = @images@, @NAME@_KERNELS = @kernels@ };

/* Extents of a grid in blocks, of a block in threads, of a cluster in blocks; 1 for an axis that is not used. */
typedef struct @name@_dim3 {
    unsigned int x, y, z;
} @name@_dim3;

static inline @name@_dim3 @name@_dim(unsigned int x, unsigned int y, unsigned int z) {
    @name@_dim3 extents;
    extents.x = x;
    extents.y = y;
    extents.z = z;
    return extents;
}

/* The functions of the driver that the launchers call, found in libcuda at run time: nothing is linked. */
typedef struct @name@_driver {
    void *library;
    CUresult(CUDAAPI *init)(unsigned int);
    CUresult(CUDAAPI *current_device)(CUdevice *);
    CUresult(CUDAAPI *device_attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult(CUDAAPI *load_module)(CUmodule *, const void *);
    CUresult(CUDAAPI *unload_module)(CUmodule);
    CUresult(CUDAAPI *get_function)(CUfunction *, CUmodule, const char *);
    CUresult(CUDAAPI *function_attribute)(int *, CUfunction_attribute, CUfunction);
    CUresult(CUDAAPI *set_function_attribute)(CUfunction, CUfunction_attribute, int);
    CUresult(CUDAAPI *launch)(const CUlaunchConfig *, CUfunction, void **, void **);
    CUresult(CUDAAPI *error_string)(CUresult, const char **);
} @name@_driver;

/* The kernels, loaded into one context. After a failed @name@_open or @name@_load, `message` says why. Any number of
 * threads may launch at once; loading and unloading is for one. */
typedef struct @name@_kernels {
    @name@_driver driver;
    CUmodule modules[@NAME@_IMAGES];
    CUfunction functions[@NAME@_KERNELS];
    char message[1024];
} @name@_kernels;

/* libcuda's own function for a name of cuda.h, with the version that cuda.h means by it; NULL if it has none. */
#define @NAME@_SYMBOL(library, function) @NAME@_SYMBOL_(library, function)
#define @NAME@_SYMBOL_(library, function) @name@_symbol(library, #function)

static inline void *@name@_symbol(void *library, const char *function) {
#ifdef _WIN32
    FARPROC found = GetProcAddress((HMODULE)library, function);
    void *symbol = NULL;
    memcpy(&symbol, &found, sizeof symbol);
    return symbol;
#else
    return dlsym(library, function);
#endif
}

/* Opens libcuda. Called by @name@_load; call it yourself to learn first whether there is a driver. Returns
 * CUDA_ERROR_SHARED_OBJECT_INIT_FAILED if there is none, CUDA_ERROR_NO_DEVICE if there is no GPU. */
static inline CUresult @name@_open(@name@_kernels *kernels) {
    @name@_driver *driver = &kernels->driver;
    CUresult result;
    const char *text = NULL;
    memset(kernels, 0, sizeof *kernels);
#ifdef _WIN32
    driver->library = (void *)LoadLibraryA("nvcuda.dll");
    if (driver->library == NULL) {
        snprintf(kernels->message, sizeof kernels->message, "no NVIDIA driver: nvcuda.dll cannot be opened");
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    }
#else
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (driver->library == NULL) {
        snprintf(kernels->message, sizeof kernels->message, "no NVIDIA driver: %s", dlerror());
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    }
#endif
#define @NAME@_RESOLVE(member, function)                                                                       \
    do {                                                                                                       \
        void *symbol = @NAME@_SYMBOL(driver->library, function);                                               \
        if (symbol == NULL) {                                                                                  \
            snprintf(kernels->message, sizeof kernels->message, "the NVIDIA driver is too old: it has no %s",  \
                     #function);                                                                               \
            return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;                                                  \
        }                                                                                                      \
        memcpy(&driver->member, &symbol, sizeof symbol);                                                       \
    } while (0)
    @NAME@_RESOLVE(init, cuInit);
    @NAME@_RESOLVE(current_device, cuCtxGetDevice);
    @NAME@_RESOLVE(device_attribute, cuDeviceGetAttribute);
    @NAME@_RESOLVE(load_module, cuModuleLoadData);
    @NAME@_RESOLVE(unload_module, cuModuleUnload);
    @NAME@_RESOLVE(get_function, cuModuleGetFunction);
    @NAME@_RESOLVE(function_attribute, cuFuncGetAttribute);
    @NAME@_RESOLVE(set_function_attribute, cuFuncSetAttribute);
    @NAME@_RESOLVE(launch, cuLaunchKernelEx);
    @NAME@_RESOLVE(error_string, cuGetErrorString);
#undef @NAME@_RESOLVE
    result = driver->init(0);
    if (result != CUDA_SUCCESS) {
        (void)driver->error_string(result, &text);
        snprintf(kernels->message, sizeof kernels->message, "cuInit: error %d, %s", (int)result, text ? text : "unknown");
    }
    return result;
}

/* The driver's text of an error, for any of its results. */
static inline const char *@name@_error(const @name@_kernels *kernels, CUresult result) {
    const char *text = NULL;
    if (kernels->driver.error_string == NULL || kernels->driver.error_string(result, &text) != CUDA_SUCCESS)
        text = NULL;
    return text != NULL ? text : "unknown error";
}

static inline CUresult @name@_failed(@name@_kernels *kernels, const char *what, CUresult result) {
    snprintf(kernels->message, sizeof kernels->message, "%s: error %d, %s", what, (int)result,
             @name@_error(kernels, result));
    return result;
}

/* Unloads the modules. May be called twice, and after a failed load. */
static inline CUresult @name@_unload(@name@_kernels *kernels) {
    CUresult result = CUDA_SUCCESS;
    int image;
    for (image = 0; image < @NAME@_IMAGES; image++) {
        if (kernels->modules[image] != NULL) {
            CUresult unloaded = kernels->driver.unload_module(kernels->modules[image]);
            result = result == CUDA_SUCCESS ? unloaded : result;
        }
        kernels->modules[image] = NULL;
    }
    memset(kernels->functions, 0, sizeof kernels->functions);
    return result;
}

/* Whether an image has code for compute capability major.minor. Machine code runs on its own major number from its
 * minor number on, with the letter a on its own architecture alone; PTX, marked +, is compiled for any later one. */
static inline bool @name@_fits(const char *architectures, int major, int minor) {
    const char *at = architectures;
    while (*at != '\0') {
        char *end = NULL;
        const long number = strtol(at, &end, 10);
        const int its_major = (int)(number / 10), its_minor = (int)(number % 10);
        if (end == at) return false;
        if (*end == '+') {
            if (major > its_major || (major == its_major && minor >= its_minor)) return true;
        } else if (major == its_major && (*end == 'a' ? minor == its_minor : minor >= its_minor)) {
            return true;
        }
        at = end;
        while (*at != '\0' && *at != ' ') at++;
        while (*at == ' ') at++;
    }
    return false;
}

/* Loads the kernels from the contents of the .fatbin files in memory, in the order of @name@_file, into the current
 * context: for programs that have them built in. Aligned to 8 bytes. */
static inline CUresult @name@_load_images(@name@_kernels *kernels, const void *const *images) {
    /* Architectures of each image: machine code, then PTX with a +. */
    static const char *const architectures[@NAME@_IMAGES] = {@architectures@};
    static const struct {
        int image;
        bool cluster;
        const char *symbol;
    } table[@NAME@_KERNELS] = {@table@};
    CUdevice device;
    CUresult result;
    int major = 0, minor = 0, most_shared = 0, index, loaded = 0;
    result = @name@_open(kernels);
    if (result != CUDA_SUCCESS) return result;
    result = kernels->driver.current_device(&device);
    if (result != CUDA_SUCCESS)
        return @name@_failed(kernels, "no context is current: make one first, with cuDevicePrimaryCtxRetain and "
                                      "cuCtxSetCurrent, or cudaSetDevice", result);
    result = kernels->driver.device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = kernels->driver.device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result == CUDA_SUCCESS)
        result = kernels->driver.device_attribute(&most_shared,
                                                  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    if (result != CUDA_SUCCESS) return @name@_failed(kernels, "cuDeviceGetAttribute", result);
    for (index = 0; index < @NAME@_IMAGES; index++) {
        if (!@name@_fits(architectures[index], major, minor)) continue;
        result = kernels->driver.load_module(&kernels->modules[index], images[index]);
        if (result != CUDA_SUCCESS) {
            (void)@name@_unload(kernels);
            return @name@_failed(kernels, "cuModuleLoadData", result);
        }
        loaded++;
    }
    if (loaded == 0) {
        snprintf(kernels->message, sizeof kernels->message,
                 "no code for this device, of compute capability %d.%d: @name@ was exported for @built@; "
                 "export it again with --arch sm_%d%d",
                 major, minor, major, minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    for (index = 0; index < @NAME@_KERNELS; index++) {
        CUmodule module = kernels->modules[table[index].image];
        CUfunction *function = &kernels->functions[index];
        int fixed_shared = 0;
        if (module == NULL) continue;
        result = kernels->driver.get_function(function, module, table[index].symbol);
        if (result == CUDA_ERROR_NOT_FOUND) { /* for later architectures only */
            *function = NULL;
            continue;
        }
        if (result == CUDA_SUCCESS)
            result = kernels->driver.function_attribute(&fixed_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function);
        if (result == CUDA_SUCCESS)
            result = kernels->driver.set_function_attribute(
                *function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most_shared - fixed_shared);
        if (result == CUDA_SUCCESS && table[index].cluster && major >= 9)
            result = kernels->driver.set_function_attribute(
                *function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
        if (result != CUDA_SUCCESS) {
            (void)@name@_unload(kernels);
            return @name@_failed(kernels, table[index].symbol, result);
        }
    }
    return CUDA_SUCCESS;
}

/* The name of an image's file, from 0 to @NAME@_IMAGES - 1. */
static inline const char *@name@_file(int image) {
    static const char *const files[@NAME@_IMAGES] = {@files@};
    return files[image];
}

static inline uint32_t @name@_crc32(const unsigned char *bytes, size_t size) {
    uint32_t crc = 0xffffffffu;
    size_t at;
    int bit;
    for (at = 0; at < size; at++) {
        crc ^= bytes[at];
        for (bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1u ? 0xedb88320u : 0u);
    }
    return ~crc;
}

/* Reads the file of an image in `folder` into memory of malloc. */
static inline CUresult @name@_read(@name@_kernels *kernels, const char *folder, int image, unsigned char **data) {
    static const struct {
        size_t size;
        uint32_t crc32;
    } written[@NAME@_IMAGES] = {@written@};
    const size_t size = written[image].size;
    const size_t length = strlen(folder) + strlen(@name@_file(image)) + 2;
    char *path = (char *)malloc(length);
    FILE *file = NULL;
    CUresult result = CUDA_SUCCESS;
    *data = (unsigned char *)malloc(size + 1);
    if (path == NULL || *data == NULL) {
        free(path);
        snprintf(kernels->message, sizeof kernels->message, "out of memory");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    snprintf(path, length, "%s/%s", folder, @name@_file(image));
    file = fopen(path, "rb");
    if (file == NULL) {
        snprintf(kernels->message, sizeof kernels->message, "%s cannot be opened: give the folder of @name@.h", path);
        result = CUDA_ERROR_FILE_NOT_FOUND;
    } else {
        if (fread(*data, 1, size + 1, file) != size || @name@_crc32(*data, size) != written[image].crc32) {
            snprintf(kernels->message, sizeof kernels->message,
                     "%s was not written together with @name@.h: export again and build with the new header", path);
            result = CUDA_ERROR_INVALID_IMAGE;
        }
        fclose(file);
    }
    free(path);
    return result;
}

/* Loads the kernels from the .fatbin files in `folder` into the current context. Returns CUDA_SUCCESS, or the first
 * error, which `message` explains; nothing stays loaded then. */
static inline CUresult @name@_load(@name@_kernels *kernels, const char *folder) {
    unsigned char *data[@NAME@_IMAGES];
    const void *images[@NAME@_IMAGES];
    CUresult result = CUDA_SUCCESS;
    int image, count = 0;
    memset(kernels, 0, sizeof *kernels);
    for (image = 0; image < @NAME@_IMAGES && result == CUDA_SUCCESS; image++) {
        result = @name@_read(kernels, folder, image, &data[image]);
        images[image] = data[image];
        count++;
    }
    if (result == CUDA_SUCCESS) result = @name@_load_images(kernels, images);
    for (image = 0; image < count; image++) free(data[image]);
    return result;
}

/* Queues a launch; the launchers below call it. cluster: NULL if the kernel takes no cluster size. */
static inline CUresult @name@_launch(const @name@_kernels *kernels, int kernel, CUstream stream, @name@_dim3 grid,
                                     @name@_dim3 block, unsigned int shared, const @name@_dim3 *cluster,
                                     bool cooperative, void **values) {
    CUlaunchAttribute attributes[2];
    CUlaunchConfig config;
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    if (kernels->driver.launch == NULL) return CUDA_ERROR_NOT_INITIALIZED; /* @name@_load was not called */
    if (kernels->functions[kernel] == NULL) return CUDA_ERROR_NO_BINARY_FOR_GPU; /* unloaded, or for another GPU */
    config.gridDimX = grid.x;
    config.gridDimY = grid.y;
    config.gridDimZ = grid.z;
    config.blockDimX = block.x;
    config.blockDimY = block.y;
    config.blockDimZ = block.z;
    config.sharedMemBytes = shared;
    config.hStream = stream;
    config.attrs = attributes;
    if (cluster != NULL) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[config.numAttrs].value.clusterDim.x = cluster->x;
        attributes[config.numAttrs].value.clusterDim.y = cluster->y;
        attributes[config.numAttrs].value.clusterDim.z = cluster->z;
        config.numAttrs++;
    }
    if (cooperative) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attributes[config.numAttrs].value.cooperative = 1;
        config.numAttrs++;
    }
    return kernels->driver.launch(&config, kernels->functions[kernel], values, NULL);
}

@structs@/* The kernels. Each launcher queues one launch on `stream` (NULL: the default stream) and returns the driver's result: what
 * it refuses, CUDA_ERROR_NOT_INITIALIZED before @name@_load, CUDA_ERROR_NO_BINARY_FOR_GPU if the kernel was not exported
 * for this device, or an error of earlier work. `shared` is the bytes of dynamic shared memory per block. Pointers are
 * addresses in device memory. */

@launchers@
#ifdef __cplusplus
}
@cplusplus@#endif

#endif
