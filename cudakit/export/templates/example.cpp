@banner@
// Build it without linking libcuda, in the folder of @name@.h:
//     g++ -std=c++17 -I$CUDA/include example.cpp -o example -ldl && ./example
// cuda.h is in a CUDA toolkit's include folder, and in the wheel nvidia-cuda-runtime in nvidia/cu13/include.

#include "@name@.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace {

[[noreturn]] void stop(const std::string &why) {
    std::fprintf(stderr, "example: %s\n", why.c_str());
    std::exit(EXIT_FAILURE);
}

// The driver's functions that this program calls itself, found at run time as the header finds those of the launchers.
struct Driver {
    decltype(&cuDeviceGet) device_get = nullptr;
    decltype(&cuDeviceGetName) device_name = nullptr;
    decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
    decltype(&cuDevicePrimaryCtxRelease) release = nullptr;
    decltype(&cuCtxSetCurrent) set_current = nullptr;
    decltype(&cuCtxSynchronize) synchronize = nullptr;
    decltype(&cuMemAlloc) allocate = nullptr;
    decltype(&cuMemFree) free = nullptr;
    decltype(&cuMemcpyHtoD) copy_in = nullptr;
    decltype(&cuMemcpyDtoH) copy_out = nullptr;

    explicit Driver(void *library) {
#define FIND(member, function) find(member, @NAME@_SYMBOL(library, function), #function)
        FIND(device_get, cuDeviceGet);
        FIND(device_name, cuDeviceGetName);
        FIND(retain, cuDevicePrimaryCtxRetain);
        FIND(release, cuDevicePrimaryCtxRelease);
        FIND(set_current, cuCtxSetCurrent);
        FIND(synchronize, cuCtxSynchronize);
        FIND(allocate, cuMemAlloc);
        FIND(free, cuMemFree);
        FIND(copy_in, cuMemcpyHtoD);
        FIND(copy_out, cuMemcpyDtoH);
#undef FIND
    }

    template <class Function> static void find(Function &function, void *symbol, const char *name) {
        if (symbol == nullptr) stop(std::string("the NVIDIA driver is too old: it has no ") + name);
        std::memcpy(&function, &symbol, sizeof symbol);
    }
};

// Contents of buffers, and the results that are expected.
std::vector<char> read_file(const std::string &path) {
    std::FILE *file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) stop(path + " cannot be opened: give the folder of @name@.h as the argument");
    std::vector<char> content;
    char part[65536];
    for (size_t got = 0; (got = std::fread(part, 1, sizeof part, file)) > 0;)
        content.insert(content.end(), part, part + got);
    std::fclose(file);
    return content;
}

struct Session {
    @name@_kernels kernels;
    const Driver driver;
    const std::vector<char> data;
    int correct = 0, wrong = 0, skipped = 0;

    void check(CUresult result, const char *what) const {
        if (result != CUDA_SUCCESS) stop(std::string(what) + ": " + @name@_error(&kernels, result));
    }

    const char *at(size_t offset, size_t size) const {
        if (offset + size > data.size()) stop("example.data was not written together with this program");
        return data.data() + offset;
    }

    // Whether a kernel was launched; false if it was not exported for this device.
    bool launched(CUresult result, const char *kernel) {
        if (result == CUDA_ERROR_NO_BINARY_FOR_GPU) {
            std::printf("skipped  %s: not exported for this device\n", kernel);
            skipped++;
            return false;
        }
        check(result, kernel);
        return true;
    }

    void finish(bool ok, const char *title) {
        std::printf("%s  %s\n", ok ? "correct" : "WRONG  ", title);
        ++(ok ? correct : wrong);
    }
};

// Device memory with the `size` bytes of example.data from `offset` on.
class Buffer {
  public:
    Buffer(const Session &session, size_t offset, size_t size) : session_(session), size_(size) {
        session.check(session.driver.allocate(&address_, size > 0 ? size : 1), "cuMemAlloc");
        if (size > 0) session.check(session.driver.copy_in(address_, session.at(offset, size), size), "cuMemcpyHtoD");
    }
    ~Buffer() { (void)session_.driver.free(address_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    // The address `offset` bytes from its beginning.
    template <class Pointer> Pointer at(size_t offset) const {
        return reinterpret_cast<Pointer>(static_cast<std::uintptr_t>(address_ + offset));
    }
    template <class Number> Number address(size_t offset) const { return static_cast<Number>(address_ + offset); }

    std::vector<char> read() const {
        std::vector<char> bytes(size_);
        if (size_ > 0) session_.check(session_.driver.copy_out(bytes.data(), address_, size_), "cuMemcpyDtoH");
        return bytes;
    }

  private:
    const Session &session_;
    size_t size_;
    CUdeviceptr address_ = 0;
};

template <class T> T from_bytes(std::initializer_list<unsigned char> bytes) {
    T value;
    std::memcpy(&value, bytes.begin(), sizeof value);
    return value;
}

// Numbers of the device as double. The 16-bit floats are given as their bits.
struct Half {
    std::uint16_t bits;
    explicit operator double() const {
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        double size = std::ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25);
        if (exponent == 31) size = fraction ? std::nan("") : HUGE_VAL;
        return bits & 0x8000 ? -size : size;
    }
};
struct Bfloat16 {
    std::uint16_t bits;
    explicit operator double() const {
        const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return static_cast<double>(value);
    }
};

// Whether a buffer's bytes are those of example.data from `expected` on.
[[maybe_unused]] bool equal(const Session &session, const Buffer &buffer, size_t expected) {
    const std::vector<char> found = buffer.read();
    const bool same = std::memcmp(found.data(), session.at(expected, found.size()), found.size()) == 0;
    if (!same) std::printf("         the result differs\n");
    return same;
}

// Whether each of `count` numbers of a buffer is as close to the expected double as its tolerance, the double after it.
template <class T> bool close(const Session &session, const Buffer &buffer, size_t expected, size_t count) {
    const std::vector<char> found = buffer.read();
    const char *wanted = session.at(expected, 2 * sizeof(double) * count);
    for (size_t element = 0; element < count; element++) {
        T value;
        double pair[2];
        std::memcpy(&value, found.data() + element * sizeof value, sizeof value);
        std::memcpy(pair, wanted + element * sizeof pair, sizeof pair);
        const double number = static_cast<double>(value);
        const bool same = number == pair[0] || (std::isnan(number) && std::isnan(pair[0]));
        if (!same && !(std::fabs(number - pair[0]) <= pair[1])) {
            std::printf("         element %zu is %g, and should be %g\n", element, number, pair[0]);
            return false;
        }
    }
    return true;
}

@samples@}  // namespace

int main(int argc, char **argv) {
    const std::string program = argv[0];
    const size_t slash = program.find_last_of("/\\");
    const std::string folder = argc > 1 ? argv[1] : slash == std::string::npos ? "." : program.substr(0, slash);

    @name@_kernels opened;
    if (@name@_open(&opened) != CUDA_SUCCESS) stop(opened.message);
    Session session{opened, Driver(opened.driver.library), read_file(folder + "/example.data")};
    CUdevice device;
    CUcontext context;
    char name[256] = "";
    session.check(session.driver.device_get(&device, 0), "cuDeviceGet");
    session.check(session.driver.device_name(name, sizeof name, device), "cuDeviceGetName");
    session.check(session.driver.retain(&context, device), "cuDevicePrimaryCtxRetain");
    session.check(session.driver.set_current(context), "cuCtxSetCurrent");
    if (@name@_load(&session.kernels, folder.c_str()) != CUDA_SUCCESS) stop(session.kernels.message);

@calls@
    session.check(@name@_unload(&session.kernels), "cuModuleUnload");
    session.check(session.driver.release(device), "cuDevicePrimaryCtxRelease");
    std::printf("%s: %d correct, %d wrong, %d skipped\n", name, session.correct, session.wrong, session.skipped);
    if (session.correct + session.wrong == 0) stop("no kernel was launched");
    return session.wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
