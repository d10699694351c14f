/* CRC32C (Castagnoli) with the processor's instruction if available, otherwise with a table.
 *
 * Three independent streams, each a third of the data, hide the instruction's latency of three cycles; their results
 * are joined with carry-less multiplications by x^n modulo the polynomial, for n that are computed once at start-up.
 */
#ifndef PENSTOCK_CRC32C_H
#define PENSTOCK_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#define CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))
#define CRC32C_STEP(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))
#define CRC32C_MULTIPLY(a, b) \
    ((uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(a), _mm_cvtsi64_si128(b), 0)))
#define CRC32C_HARDWARE() (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_TARGET
#define CRC32C_STEP(crc, word) __crc32cd((crc), (word))
#define CRC32C_BYTE(crc, byte) __crc32cb((crc), (byte))
#define CRC32C_HARDWARE() 1
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u /* bit-reflected */
#define CRC32C_STREAM_MIN 6           /* words of 8 bytes per stream; below this, joining costs more than it saves */
#define CRC32C_STREAM_MAX 128

static uint32_t crc32c_table[256];
static uint32_t crc32c_power[2 * CRC32C_STREAM_MAX + 1]; /* [n]: x^(64 n - 33), the factor for n words of zeros */
static int crc32c_is_hardware;

static inline uint32_t crc32c_times_x(uint32_t crc) { return (crc >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (crc & 1))); }

static void crc32c_initialise(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc32c_times_x(crc);
        crc32c_table[n] = crc;
    }
    crc32c_power[1] = 1; /* x^31 */
    for (int n = 2; n <= 2 * CRC32C_STREAM_MAX; n++) {
        uint32_t power = crc32c_power[n - 1];
        for (int bit = 0; bit < 64; bit++) power = crc32c_times_x(power);
        crc32c_power[n] = power;
    }
#ifdef CRC32C_STEP
    crc32c_is_hardware = CRC32C_HARDWARE();
#endif
}

static uint32_t crc32c_software(uint32_t crc, const uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++) crc = (crc >> 8) ^ crc32c_table[(crc ^ data[i]) & 0xFF];
    return crc;
}

#ifdef CRC32C_STEP
static inline uint64_t crc32c_load(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *data, size_t size) {
#ifdef CRC32C_MULTIPLY
    size_t words;
    while ((words = size / 24) >= CRC32C_STREAM_MIN) {
        if (words > CRC32C_STREAM_MAX) words = CRC32C_STREAM_MAX;
        const uint8_t *end = data + 8 * words;
        uint32_t second = 0, third = 0;
        for (; data < end; data += 8) {
            crc = CRC32C_STEP(crc, crc32c_load(data));
            second = CRC32C_STEP(second, crc32c_load(data + 8 * words));
            third = CRC32C_STEP(third, crc32c_load(data + 16 * words));
        }
        /* the instruction reduces the products, and multiplies by the x^33 that the powers lack */
        crc = CRC32C_STEP(0, CRC32C_MULTIPLY(crc, crc32c_power[2 * words]) ^
                                 CRC32C_MULTIPLY(second, crc32c_power[words])) ^ third;
        data += 16 * words;
        size -= 24 * words;
    }
#endif
    for (; size >= 8; data += 8, size -= 8) crc = CRC32C_STEP(crc, crc32c_load(data));
    for (; size > 0; data++, size--) crc = CRC32C_BYTE(crc, *data);
    return crc;
}
#endif

/* Return the CRC32C of data, continued from `crc` (initially 0). */
static inline uint32_t crc32c(uint32_t crc, const void *data, size_t size) {
#ifdef CRC32C_STEP
    if (crc32c_is_hardware) return ~crc32c_hardware(~crc, (const uint8_t *)data, size);
#endif
    return ~crc32c_software(~crc, (const uint8_t *)data, size);
}

/* True if crc32c_join() supports a second piece of `size` bytes. */
static inline int crc32c_joins(size_t size) {
#ifdef CRC32C_MULTIPLY
    return crc32c_is_hardware && size > 0 && size % 8 == 0 && size <= 8 * 2 * CRC32C_STREAM_MAX;
#else
    (void)size;
    return 0;
#endif
}

/* Return the CRC32C of two adjacent pieces from the CRC32C of each. */
#ifdef CRC32C_MULTIPLY
CRC32C_TARGET static uint32_t crc32c_join(uint32_t first, uint32_t second, size_t second_size) {
    return CRC32C_STEP(0, CRC32C_MULTIPLY(first, crc32c_power[second_size / 8])) ^ second;
}
#else
static uint32_t crc32c_join(uint32_t first, uint32_t second, size_t second_size) {
    (void)second_size;
    return first ^ second;
}
#endif

#endif
