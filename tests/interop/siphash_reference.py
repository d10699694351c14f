"""SipHash-2-4 with 128 bits and the tags of packets, written from the paper and protocol/packet.md for the tests.

It shares no code with the product.
"""

MASK = 2**64 - 1


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


class _State:
    def __init__(self, key: bytes) -> None:
        low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        constant = b"somepseudorandomlygeneratedbytes"
        words = [int.from_bytes(constant[at : at + 8], "big") for at in range(0, 32, 8)]
        self.v = [words[0] ^ low, words[1] ^ high ^ 0xEE, words[2] ^ low, words[3] ^ high]

    def rounds(self, count: int) -> None:
        a, b, c, d = self.v
        for _ in range(count):
            a, c = (a + b) & MASK, (c + d) & MASK
            b, d = _rotated(b, 13) ^ a, _rotated(d, 16) ^ c
            a = _rotated(a, 32)
            c, a = (c + b) & MASK, (a + d) & MASK
            b, d = _rotated(b, 17) ^ c, _rotated(d, 21) ^ a
            c = _rotated(c, 32)
        self.v = [a, b, c, d]

    def half(self) -> bytes:
        return (self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]).to_bytes(8, "little")


def siphash_128(data: bytes, key: bytes) -> bytes:
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    state = _State(key)
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        state.v[3] ^= word
        state.rounds(2)
        state.v[0] ^= word
    state.v[2] ^= 0xEE
    state.rounds(4)
    low = state.half()
    state.v[1] ^= 0xDD
    state.rounds(4)
    return low + state.half()


def packet_tag(data: bytes, key: bytes) -> bytes:
    """SipHash of short data; for long data, SipHash of the four lanes, the size and the bytes after the last whole
    block."""
    if len(data) < 256:
        return siphash_128(data, key)
    keys = [siphash_128(number.to_bytes(8, "little"), key) for number in range(5)]
    whole = len(data) // 32 * 32
    words = [data[at : at + 8] for at in range(0, whole, 8)]
    lanes = [siphash_128(b"".join(words[lane::4]), keys[lane]) for lane in range(4)]
    first, second = [each[:8] for each in lanes], [each[8:] for each in lanes]
    return siphash_128(b"".join([*first, *second, len(data).to_bytes(8, "little"), data[whole:]]), keys[4])
