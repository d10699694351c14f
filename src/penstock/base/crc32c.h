/* CRC32C (Castagnoli) with the processor's own instruction where it has one, a table elsewhere.
 *
 * Three independent streams hide the instruction's latency of three cycles; their results are joined with
 * multiplications by x^n modulo the polynomial, looked up in tables that are made once at start-up.
 */
#ifndef PENSTOCK_CRC32C_H
#define PENSTOCK_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#define CRC32C_STEP(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))
#define CRC32C_HARDWARE() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_TARGET
#define CRC32C_STEP(crc, word) __crc32cd((crc), (word))
#define CRC32C_BYTE(crc, byte) __crc32cb((crc), (byte))
#define CRC32C_HARDWARE() 1
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u /* bit-reflected */
#define CRC32C_BLOCK 256              /* bytes per stream; three streams make one round of 768 bytes */

static uint32_t crc32c_table[256];
static uint32_t crc32c_shift[4][256]; /* appends CRC32C_BLOCK zero bytes to a CRC, byte by byte of the CRC */
static int crc32c_is_hardware;

static void crc32c_initialise(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (crc & 1)));
        crc32c_table[n] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n << (8 * byte);
            for (int i = 0; i < CRC32C_BLOCK; i++) crc = (crc >> 8) ^ crc32c_table[crc & 0xFF];
            crc32c_shift[byte][n] = crc;
        }
#ifdef CRC32C_STEP
    crc32c_is_hardware = CRC32C_HARDWARE();
#endif
}

static inline uint32_t crc32c_append_block(uint32_t crc) {
    return crc32c_shift[0][crc & 0xFF] ^ crc32c_shift[1][(crc >> 8) & 0xFF] ^ crc32c_shift[2][(crc >> 16) & 0xFF] ^
           crc32c_shift[3][crc >> 24];
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
    while (size >= 3 * CRC32C_BLOCK) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < CRC32C_BLOCK; i += 8) {
            crc = CRC32C_STEP(crc, crc32c_load(data + i));
            second = CRC32C_STEP(second, crc32c_load(data + CRC32C_BLOCK + i));
            third = CRC32C_STEP(third, crc32c_load(data + 2 * CRC32C_BLOCK + i));
        }
        crc = crc32c_append_block(crc32c_append_block(crc) ^ second) ^ third;
        data += 3 * CRC32C_BLOCK;
        size -= 3 * CRC32C_BLOCK;
    }
    for (; size >= 8; data += 8, size -= 8) crc = CRC32C_STEP(crc, crc32c_load(data));
    for (; size > 0; data++, size--) crc = CRC32C_BYTE(crc, *data);
    return crc;
}
#endif

/* The CRC32C of data, going on from `crc` (0 at first). */
static inline uint32_t crc32c(uint32_t crc, const void *data, size_t size) {
#ifdef CRC32C_STEP
    if (crc32c_is_hardware) return ~crc32c_hardware(~crc, (const uint8_t *)data, size);
#endif
    return ~crc32c_software(~crc, (const uint8_t *)data, size);
}

#endif
