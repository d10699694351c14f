from penstock.shm import RegionMarks, RegionWriter

class RegionSink:
    region: RegionWriter
    marks: RegionMarks | None
    is_shared: bool
    record_count: int
    users: int
    def __init__(self, region: RegionWriter, marks: RegionMarks | None = None, *, is_shared: bool = False) -> None: ...
