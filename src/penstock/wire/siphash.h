/* SipHash-2-4 with an output of 128 bits (Aumasson and Bernstein, 2012; the 128-bit variant of their reference code).

   It is a keyed pseudorandom function: whoever does not have the 128-bit key can neither compute nor predict the
   output for other bytes. It uses additions, rotations and exclusive ors of 64-bit words only, so its time does not
   depend on key or content, and it needs no library and no processor extension. */

#ifndef PENSTOCK_WIRE_SIPHASH_H
#define PENSTOCK_WIRE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SIPHASH_ROTATED(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))

#define SIPHASH_ROUND                                                                                                  \
    do {                                                                                                               \
        v0 += v1; v1 = SIPHASH_ROTATED(v1, 13); v1 ^= v0; v0 = SIPHASH_ROTATED(v0, 32);                                \
        v2 += v3; v3 = SIPHASH_ROTATED(v3, 16); v3 ^= v2;                                                              \
        v0 += v3; v3 = SIPHASH_ROTATED(v3, 21); v3 ^= v0;                                                              \
        v2 += v1; v1 = SIPHASH_ROTATED(v1, 17); v1 ^= v2; v2 = SIPHASH_ROTATED(v2, 32);                                \
    } while (0)

#define SIPHASH_TAKE(word)                                                                                             \
    do {                                                                                                               \
        v3 ^= (word); SIPHASH_ROUND; SIPHASH_ROUND; v0 ^= (word);                                                      \
    } while (0)

static inline void siphash_128(const uint8_t *data, size_t size, uint64_t low, uint64_t high, uint64_t out[2])
{
    uint64_t v0 = low ^ UINT64_C(0x736f6d6570736575);
    uint64_t v1 = high ^ UINT64_C(0x646f72616e646f6d) ^ 0xee;
    uint64_t v2 = low ^ UINT64_C(0x6c7967656e657261);
    uint64_t v3 = high ^ UINT64_C(0x7465646279746573);
    uint64_t last = (uint64_t)size << 56;
    size_t at = 0;
    for (; size - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, sizeof(word));
        SIPHASH_TAKE(word);
    }
    for (size_t tail = 0; at + tail < size; tail++)
        last |= (uint64_t)data[at + tail] << (8 * tail);
    SIPHASH_TAKE(last);
    v2 ^= 0xee;
    SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND;
    out[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND;
    out[1] = v0 ^ v1 ^ v2 ^ v3;
}

#endif
