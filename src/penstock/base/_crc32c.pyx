"""CRC32C for Python; compiled code cimports crc32c_extend() and calls crc32c_initialise() once on import."""

crc32c_initialise()


def crc32c(const unsigned char[::1] data not None, unsigned int crc = 0):
    """Return the CRC32C of `data`, continued from `crc`."""
    if data.shape[0] == 0:
        return crc
    return crc32c_extend(crc, &data[0], data.shape[0])


def crc32c_without_hardware(const unsigned char[::1] data not None, unsigned int crc = 0):
    """Return the same checksum by table lookup, as on machines without the instruction; tests compare both."""
    if data.shape[0] == 0:
        return crc
    return ~crc32c_software(~crc, &data[0], data.shape[0]) & 0xFFFFFFFF
