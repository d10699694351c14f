from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import Buffer

KIND_RANGE: int
KIND_BITS: int
KIND_TEXT: int
KIND_LIKE: int
KIND_FIELDS_NUMBER: int
KIND_FIELDS_FLOAT: int
KIND_FIELDS_TEXT: int
SIGN_LESS: int
SIGN_EQUAL: int
SIGN_GREATER: int
ACCEPT: int
REJECT: int
ANY_CHARACTER: int
ANY_CHARACTERS: int

Array = np.ndarray[Any, Any]

class Program:
    def __init__(self, nodes: Sequence[Any], entry: int, pool: bytes) -> None: ...
    def __len__(self) -> int: ...
    def __call__(self, record: Buffer) -> bool: ...
    def select(self, data: Array, stride: int, passes: Array) -> None: ...
    def select_at(self, data: Array, offsets: Array, sizes: Array, passes: Array) -> None: ...

def key_of_float(number: float) -> int: ...
