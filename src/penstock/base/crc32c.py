"""CRC32C, the checksum used throughout Penstock."""

from penstock.base._crc32c import crc32c, crc32c_without_hardware

__all__ = ["crc32c", "crc32c_without_hardware"]
