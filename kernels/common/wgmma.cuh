// The product of a warpgroup, wgmma (sm_90a): both operands in shared memory, float sums in registers.
//
// An operand's tile in shared memory consists of rows of 128 bytes, swizzled as a tensor load with 128-byte swizzle
// writes them: 16-byte piece p of row r is at piece p ^ r % 8. It is 1024-byte aligned.
//
// Lines are the rows of A and the columns of B. Layouts of a tile:
//   along k: row r is line r, 64 k
//   across lines: panels of 64 lines; row r of panels is k r of their lines
#pragma once
#include "mma.cuh"

constexpr int kPanelBytes = 64 * 128;  // 64 rows

// Describes 64 or more lines of an operand's tile to wgmma.
template <bool ALONG_K>
__device__ __forceinline__ uint64 wgmma_operand(unsigned tile) {
    constexpr uint64 kRows8 = 8 * 128 >> 4, kPanel = kPanelBytes >> 4, kSwizzle128 = 1;
    return (tile & 0x3ffff) >> 4 | (ALONG_K ? 1 : kPanel) << 16 | kRows8 << 32 | kSwizzle128 << 62;
}

// The number that moves a descriptor by 16 elements along k if it is added.
template <bool ALONG_K>
constexpr uint64 kWgmmaStep = (ALONG_K ? 16 * 2 : 16 * 128) >> 4;

// The list of a thread's sums as asm operands, and their register numbers.
#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_8(i)                                                                                                 \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
        "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)
#define REGISTERS4_64 "%64, %65, %66, %67"
#define REGISTERS4_72 "%72, %73, %74, %75"
#define REGISTERS4_80 "%80, %81, %82, %83"
#define REGISTERS4_88 "%88, %89, %90, %91"
#define REGISTERS4_96 "%96, %97, %98, %99"
#define REGISTERS4_104 "%104, %105, %106, %107"
#define REGISTERS4_112 "%112, %113, %114, %115"
#define REGISTERS4_120 "%120, %121, %122, %123"
#define REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define REGISTERS_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define REGISTERS_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define REGISTERS_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define REGISTERS_120 "%120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_OF(TYPE, N, REGISTERS, A, B, ADD, A_ACROSS, B_ACROSS)                                            \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " ADD ", 0;\n\twgmma.mma_async.sync.aligned.m64n" N \
                 "k16.f32." TYPE "." TYPE " {" REGISTERS "}, " A ", " B ", add, 1, 1, " A_ACROSS ", " B_ACROSS \
                 ";\n\t}"                                                                                      \
        : SUMS_OF                                                                                              \
        : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_K ? 0 : 1), "n"(B_ALONG_K ? 0 : 1)                             \
        : "memory")
#define WGMMA(COUNT, N, REGISTERS, A, B, ADD, A_ACROSS, B_ACROSS)          \
    if constexpr (kCount == COUNT) {                                       \
        if constexpr (kHalf)                                               \
            WGMMA_OF("f16", N, REGISTERS, A, B, ADD, A_ACROSS, B_ACROSS);  \
        else                                                               \
            WGMMA_OF("bf16", N, REGISTERS, A, B, ADD, A_ACROSS, B_ACROSS); \
    }

template <class T>
constexpr bool kIsHalf = false;
template <>
constexpr bool kIsHalf<__half> = true;

// sums = A * B + (add ? sums : 0) for 64 lines of A and 2 * COUNT lines of B, 16 k of T. sums[v] of thread t of the
// warpgroup is in row t / 32 * 16 + t % 32 / 4 + v / 2 % 2 * 8, column v / 4 * 8 + t % 4 * 2 + v % 2. The descriptors
// a, b: from wgmma_operand.
template <class T, bool A_ALONG_K, bool B_ALONG_K, int COUNT>
__device__ __forceinline__ void wgmma(float (&sums)[COUNT], uint64 a, uint64 b, int add) {
    constexpr int kCount = COUNT;
    constexpr bool kHalf = kIsHalf<T>;
    static_assert(COUNT > 0 && COUNT <= 128 && (COUNT % 8 == 0 || (COUNT % 4 == 0 && COUNT > 64)),
        "lines of B: a multiple of 16 up to 256, or from 128 on of 8");
#define SUMS_OF SUMS_8(0)
    WGMMA(8, "16", REGISTERS_0, "%8", "%9", "%10", "%11", "%12")
#undef SUMS_OF
#define SUMS_OF SUMS_16(0)
    WGMMA(16, "32", REGISTERS_0 ", " REGISTERS_8, "%16", "%17", "%18", "%19", "%20")
#undef SUMS_OF
#define SUMS_OF SUMS_16(0), SUMS_8(16)
    WGMMA(24, "48", REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16, "%24", "%25", "%26", "%27", "%28")
#undef SUMS_OF
#define SUMS_OF SUMS_32(0)
    WGMMA(32, "64", REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24, "%32", "%33", "%34", "%35", "%36")
#undef SUMS_OF
#define SUMS_OF SUMS_32(0), SUMS_8(32)
    WGMMA(40, "80", REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32, "%40", "%41",
        "%42", "%43", "%44")
#undef SUMS_OF
#define SUMS_OF SUMS_32(0), SUMS_16(32)
    WGMMA(48, "96",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40, "%48",
        "%49", "%50", "%51", "%52")
#undef SUMS_OF
#define SUMS_OF SUMS_32(0), SUMS_16(32), SUMS_8(48)
    WGMMA(56, "112",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48,
        "%56", "%57", "%58", "%59", "%60")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0)
    WGMMA(64, "128",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56,
        "%64", "%65", "%66", "%67", "%68")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_4(64)
    WGMMA(68, "136",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS4_64,
        "%68", "%69", "%70", "%71", "%72")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_8(64)
    WGMMA(72, "144",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64,
        "%72", "%73", "%74", "%75", "%76")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_8(64), SUMS_4(72)
    WGMMA(76, "152",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS4_72,
        "%76", "%77", "%78", "%79", "%80")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_16(64)
    WGMMA(80, "160",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72,
        "%80", "%81", "%82", "%83", "%84")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_16(64), SUMS_4(80)
    WGMMA(84, "168",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS4_80,
        "%84", "%85", "%86", "%87", "%88")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_16(64), SUMS_8(80)
    WGMMA(88, "176",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80,
        "%88", "%89", "%90", "%91", "%92")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_16(64), SUMS_8(80), SUMS_4(88)
    WGMMA(92, "184",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS4_88,
        "%92", "%93", "%94", "%95", "%96")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64)
    WGMMA(96, "192",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88,
        "%96", "%97", "%98", "%99", "%100")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_4(96)
    WGMMA(100, "200",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS4_96,
        "%100", "%101", "%102", "%103", "%104")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_8(96)
    WGMMA(104, "208",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96,
        "%104", "%105", "%106", "%107", "%108")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_8(96), SUMS_4(104)
    WGMMA(108, "216",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96 ", " REGISTERS4_104,
        "%108", "%109", "%110", "%111", "%112")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_16(96)
    WGMMA(112, "224",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96 ", " REGISTERS_104,
        "%112", "%113", "%114", "%115", "%116")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_16(96), SUMS_4(112)
    WGMMA(116, "232",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96 ", " REGISTERS_104 ", " REGISTERS4_112,
        "%116", "%117", "%118", "%119", "%120")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_16(96), SUMS_8(112)
    WGMMA(120, "240",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96 ", " REGISTERS_104 ", " REGISTERS_112,
        "%120", "%121", "%122", "%123", "%124")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_32(64), SUMS_16(96), SUMS_8(112), SUMS_4(120)
    WGMMA(124, "248",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96 ", " REGISTERS_104 ", " REGISTERS_112 ", " REGISTERS4_120,
        "%124", "%125", "%126", "%127", "%128")
#undef SUMS_OF
#define SUMS_OF SUMS_64(0), SUMS_64(64)
    WGMMA(128, "256",
        REGISTERS_0 ", " REGISTERS_8 ", " REGISTERS_16 ", " REGISTERS_24 ", " REGISTERS_32 ", " REGISTERS_40
                    ", " REGISTERS_48 ", " REGISTERS_56 ", " REGISTERS_64 ", " REGISTERS_72 ", " REGISTERS_80
                    ", " REGISTERS_88 ", " REGISTERS_96 ", " REGISTERS_104 ", " REGISTERS_112 ", " REGISTERS_120,
        "%128", "%129", "%130", "%131", "%132")
#undef SUMS_OF
}

#undef SUMS_4
#undef SUMS_8
#undef SUMS_16
#undef SUMS_32
#undef SUMS_64
#undef REGISTERS4_64
#undef REGISTERS4_72
#undef REGISTERS4_80
#undef REGISTERS4_88
#undef REGISTERS4_96
#undef REGISTERS4_104
#undef REGISTERS4_112
#undef REGISTERS4_120
#undef REGISTERS_0
#undef REGISTERS_8
#undef REGISTERS_16
#undef REGISTERS_24
#undef REGISTERS_32
#undef REGISTERS_40
#undef REGISTERS_48
#undef REGISTERS_56
#undef REGISTERS_64
#undef REGISTERS_72
#undef REGISTERS_80
#undef REGISTERS_88
#undef REGISTERS_96
#undef REGISTERS_104
#undef REGISTERS_112
#undef REGISTERS_120
#undef WGMMA_OF
#undef WGMMA
