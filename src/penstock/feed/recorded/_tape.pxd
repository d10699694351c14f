"""The layout of a tape; docs/reference/protocol/feed-index.md has a drawing."""

cpdef enum:
    TAPE_KIND_AT = 0        # u8
    TAPE_FLAGS_AT = 1       # u8
    TAPE_SIZE_AT = 4        # u32, bytes after the header
    TAPE_SEQUENCE_AT = 8    # u64
    TAPE_NUMBER_AT = 16     # i64
    TAPE_HEADER_SIZE = 24

cpdef enum:
    TAPE_MESSAGES = 1       # blocks from `sequence` on, all received at `number`
    TAPE_SESSION = 2  # a session with this name begins at `sequence`
    TAPE_LOST = 3  # messages `sequence` to `number` are lost; the body is the cause

cpdef enum:
    TAPE_RESET = 1  # flag of a session: the source restarted its numbers
