/* What a digest is made of, sums wider than 64 bits, and other things that C has and Cython has not.
 *
 * A row of the conversion state is mixed to 64 bits; the digest is the sum of its rows' mixes, so that a row can be
 * taken out again by subtraction and the order in which rows came does not matter. docs/reference/protocol/state-image.md has
 * the definition; the numbers below are part of it.
 */
#ifndef PENSTOCK_CONVERT_MIX_H
#define PENSTOCK_CONVERT_MIX_H

#include <stdint.h>
#include <string.h>

#define MIX_FIRST 0xA0761D6478BD642Full
#define MIX_SECOND 0xE7037ED1A0B428DBull
#define MIX_LAST 0x8EBC6AF09C88C6E3ull
#define MIX_SHARD 0x9E3779B97F4A7C15ull

/* The 128-bit product, its two halves folded into one. */
static inline uint64_t mix_fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t mix_word(const unsigned char *row, size_t index) {
    uint64_t word;
    memcpy(&word, row + 8 * index, 8);
    return word;
}

/* The mix of a row of `words` 64-bit words, of the kind and place that `key` says. */
static inline uint64_t mix_row(uint64_t key, const void *row, size_t words) {
    const unsigned char *bytes = (const unsigned char *)row;
    uint64_t mixed = mix_fold(key ^ MIX_FIRST, MIX_SECOND);
    size_t index = 0;
    for (; index + 2 <= words; index += 2)
        mixed = mix_fold(mix_word(bytes, index) ^ MIX_FIRST, mix_word(bytes, index + 1) ^ mixed);
    if (index < words) mixed = mix_fold(mix_word(bytes, index) ^ MIX_FIRST, mixed);
    return mix_fold(mixed ^ MIX_SECOND, MIX_LAST);
}

/* The empty statement keeps it: gcc 12 takes a function that does nothing but prefetch for one that does nothing. */
static inline void prefetch(const void *address) {
    __builtin_prefetch(address);
    __asm__ volatile("" : : "r"(address));
}

/* Adds price × size to the 128-bit sum. */
static inline void wide_add(uint64_t *low, uint64_t *high, int64_t price, uint64_t size) {
    unsigned __int128 sum = (unsigned __int128)*high << 64 | *low;
    sum += (unsigned __int128)((__int128)price) * size;
    *low = (uint64_t)sum;
    *high = (uint64_t)(sum >> 64);
}

/* The 128-bit sum divided by `divisor`, toward zero; what does not fit 64 bits becomes the nearest that does. */
static inline int64_t wide_divide(uint64_t low, uint64_t high, int64_t divisor) {
    __int128 quotient = (__int128)((unsigned __int128)high << 64 | low) / divisor;
    if (quotient > INT64_MAX) return INT64_MAX;
    if (quotient < INT64_MIN + 1) return INT64_MIN + 1;
    return (int64_t)quotient;
}

#endif
