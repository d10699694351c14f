/* SipHash-2-4 with an output of 128 bits (Aumasson and Bernstein, 2012; the 128-bit variant of their reference code),
   and a way to hash long data in four lanes at once.

   SipHash is a keyed pseudorandom function: without the 128-bit key, the output for other bytes can neither be computed
   nor predicted. It uses additions, rotations and exclusive ors of 64-bit words only, so its time does not depend on
   key or content, and it needs neither a library nor a processor extension. */

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

/* A key and the five keys derived from it: each is SipHash of its number (8 bytes, little-endian) under `low`, `high`. */
typedef struct {
    uint64_t low, high;
    uint64_t lane_low[4], lane_high[4]; /* numbers 0 to 3 */
    uint64_t join_low, join_high;       /* number 4 */
} siphash_keys;

static inline void siphash_derive(siphash_keys *keys, uint64_t low, uint64_t high)
{
    uint64_t derived[5][2];
    for (uint64_t number = 0; number < 5; number++)
        siphash_128((const uint8_t *)&number, sizeof(number), low, high, derived[number]);
    keys->low = low;
    keys->high = high;
    for (int lane = 0; lane < 4; lane++) {
        keys->lane_low[lane] = derived[lane][0];
        keys->lane_high[lane] = derived[lane][1];
    }
    keys->join_low = derived[4][0];
    keys->join_high = derived[4][1];
}

#define SIPHASH_LANES_MIN 256 /* bytes; below, one lane is faster than four lanes and their combination */

typedef uint64_t siphash_lanes __attribute__((vector_size(32)));

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define SIPHASH_TARGETS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define SIPHASH_TARGETS
#endif

typedef struct {
    siphash_lanes v0, v1, v2, v3;
} siphash_state; /* lane i hashes word i of each 32-byte block under its own key */

#define SIPHASH_INLINE static inline __attribute__((always_inline))

SIPHASH_INLINE void siphash_lanes_begin(siphash_state *state, const siphash_keys *keys)
{
    siphash_lanes low, high;
    memcpy(&low, keys->lane_low, sizeof(low));
    memcpy(&high, keys->lane_high, sizeof(high));
    state->v0 = low ^ UINT64_C(0x736f6d6570736575);
    state->v1 = high ^ UINT64_C(0x646f72616e646f6d) ^ 0xee;
    state->v2 = low ^ UINT64_C(0x6c7967656e657261);
    state->v3 = high ^ UINT64_C(0x7465646279746573);
}

SIPHASH_INLINE void siphash_lanes_take(siphash_state *state, const uint8_t *block)
{
    siphash_lanes v0 = state->v0, v1 = state->v1, v2 = state->v2, v3 = state->v3, word;
    memcpy(&word, block, sizeof(word));
    SIPHASH_TAKE(word);
    *state = (siphash_state){v0, v1, v2, v3};
}

/* out[i] and out[i + 4] are SipHash of lane i */
SIPHASH_INLINE void siphash_lanes_end(const siphash_state *state, size_t blocks, uint64_t out[8])
{
    siphash_lanes v0 = state->v0, v1 = state->v1, v2 = state->v2, v3 = state->v3, word, result;
    word = (siphash_lanes){0} + ((uint64_t)blocks << 59); /* the lane's size, 8 bytes per block, in the highest byte */
    SIPHASH_TAKE(word);
    v2 ^= 0xee;
    SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND;
    result = v0 ^ v1 ^ v2 ^ v3;
    memcpy(out, &result, sizeof(result));
    v1 ^= 0xdd;
    SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND; SIPHASH_ROUND;
    result = v0 ^ v1 ^ v2 ^ v3;
    memcpy(out + 4, &result, sizeof(result));
}

SIPHASH_TARGETS static void siphash_lanes_hash(const uint8_t *data, size_t blocks, const siphash_keys *keys, uint64_t out[8])
{
    siphash_state state;
    siphash_lanes_begin(&state, keys);
    for (size_t at = 0; at < blocks; at++)
        siphash_lanes_take(&state, data + 32 * at);
    siphash_lanes_end(&state, blocks, out);
}

/* The lanes of two packets under one key. Each step of SipHash waits for the one before; a processor takes the steps of
   the other packet meanwhile. */
SIPHASH_TARGETS static void siphash_lanes_hash_two(
    const uint8_t *data, size_t blocks, const uint8_t *other, size_t other_blocks, const siphash_keys *keys,
    uint64_t out[8], uint64_t other_out[8])
{
    siphash_state state, other_state;
    size_t common = blocks < other_blocks ? blocks : other_blocks;
    siphash_lanes_begin(&state, keys);
    siphash_lanes_begin(&other_state, keys);
    for (size_t at = 0; at < common; at++) {
        siphash_lanes_take(&state, data + 32 * at);
        siphash_lanes_take(&other_state, other + 32 * at);
    }
    for (size_t at = common; at < blocks; at++)
        siphash_lanes_take(&state, data + 32 * at);
    for (size_t at = common; at < other_blocks; at++)
        siphash_lanes_take(&other_state, other + 32 * at);
    siphash_lanes_end(&state, blocks, out);
    siphash_lanes_end(&other_state, other_blocks, other_out);
}

/* SipHash with the joining key of the results of the four lanes, the size, and the bytes after the last whole block */
static inline void siphash_join(
    const uint64_t lanes[8], const uint8_t *data, size_t size, const siphash_keys *keys, uint64_t out[2])
{
    struct { uint64_t lanes[8], size; uint8_t rest[32]; } joined;
    size_t rest = size % 32;
    memcpy(joined.lanes, lanes, sizeof(joined.lanes));
    joined.size = size;
    memcpy(joined.rest, data + size - rest, rest);
    siphash_128((const uint8_t *)&joined, 72 + rest, keys->join_low, keys->join_high, out);
}

/* Compute the tag of a packet: SipHash of short data; for longer data, in four lanes. */
static inline void siphash_tag(const uint8_t *data, size_t size, const siphash_keys *keys, uint64_t out[2])
{
    uint64_t lanes[8];
    if (size < SIPHASH_LANES_MIN) {
        siphash_128(data, size, keys->low, keys->high, out);
        return;
    }
    siphash_lanes_hash(data, size / 32, keys, lanes);
    siphash_join(lanes, data, size, keys, out);
}

/* Compute the tags of two packets under one key: for long packets, 40 % faster than one after the other. */
static inline void siphash_tag_two(
    const uint8_t *data, size_t size, const uint8_t *other, size_t other_size, const siphash_keys *keys,
    uint64_t out[2], uint64_t other_out[2])
{
    uint64_t lanes[8], other_lanes[8];
    if (size < SIPHASH_LANES_MIN || other_size < SIPHASH_LANES_MIN) {
        siphash_tag(data, size, keys, out);
        siphash_tag(other, other_size, keys, other_out);
        return;
    }
    siphash_lanes_hash_two(data, size / 32, other, other_size / 32, keys, lanes, other_lanes);
    siphash_join(lanes, data, size, keys, out);
    siphash_join(other_lanes, other, other_size, keys, other_out);
}

#endif
