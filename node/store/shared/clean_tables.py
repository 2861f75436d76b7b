"""What a clean stop leaves of a shared store's tables, so that the next start reads no message (mission S6, S14).

``clean.tables``: the usual header (64 bytes), then the files (count; number, record bytes, valid bytes and whether
frozen of each), then the location table as `LocationTable.dump` gives it, then a CRC over everything behind the header.

The file is removed, durably, right after it was read and before anything changes: a crash at any later time must not
look like a clean stop. It is believed only if its CRC fits and the files have the sizes that it says.
"""

from __future__ import annotations

import struct
from zlib import crc32

from node.errors import StorageError
from node.store.disk.disk import Disk, DiskFile
from node.store.disk.length_file import ShortFile
from node.store.formats.record import CRC, HEADER_BYTES, TABLES_FORMAT
from node.store.shared.location_table import LocationTable
from node.store.shared.store_files import TEMPORARY_SUFFIX, FileSummary, StoreFiles
from node.store.steps import Steps, run_through

_FILE_COUNT = struct.Struct(">I")
_FILE = struct.Struct(">QQQB")
TABLES_NAME = f"clean{TABLES_FORMAT.suffix}"


def write_clean_tables(files: StoreFiles, table: LocationTable) -> None:
    """Write the tables of a store whose files are synced; durable on return. Raises `StorageError`."""
    path = f"{files.directory}/{TABLES_NAME}"
    file = files.disk.create(path + TEMPORARY_SUFFIX)
    try:
        file.pwrite(TABLES_FORMAT.header(0, 0), 0)
        parts = [_FILE_COUNT.pack(len(files.summaries))]
        for number, summary in files.summaries.items():
            parts.append(_FILE.pack(number, summary.record_bytes, summary.valid_bytes, summary.is_frozen))
        piece = b"".join(parts)
        checksum = crc32(piece)
        file.append(piece)
        for piece in table.dump():
            checksum = crc32(piece, checksum)
            file.append(piece)
        file.append(CRC.pack(checksum))
        file.sync()
    except StorageError:
        file.abandon()
        raise
    file.close()
    files.disk.rename(path + TEMPORARY_SUFFIX, path)
    files.disk.sync_directory(files.directory)


def remove_clean_tables(disk: Disk, directory: str) -> None:
    """Remove them for good, if there are any. Raises `StorageError`."""
    path = f"{directory}/{TABLES_NAME}"
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_directory(directory)


class _CheckedReader:
    """The bytes of the file in order, with a running checksum."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._position = HEADER_BYTES
        self.checksum = 0

    def read(self, size: int) -> bytes:
        # Before the read: a flipped length may ask for more than there is memory.
        if size > self._file.size - self._position:
            raise ValueError("the tables are cut off")
        data = self._file.pread(size, self._position)
        self._position += size
        self.checksum = crc32(data, self.checksum)
        return data

    def finish(self) -> None:
        """What follows is the checksum of everything before, and then nothing. Raises `ValueError`."""
        if self._file.pread(5, self._position) != CRC.pack(self.checksum):
            raise ValueError("the checksum of the tables does not fit")


def read_clean_tables(files: StoreFiles, table: LocationTable) -> str:
    """Fill ``files`` and ``table`` from what a clean stop left. Returns why not, or nothing; then both are filled.

    Raises `StorageError` if the disk refuses.
    """
    return run_through(clean_tables_in_steps(files, table, []))


def clean_tables_in_steps(files: StoreFiles, table: LocationTable, short_files: list[ShortFile]) -> Steps[str]:
    """The same, some thousand entries per step.

    ``short_files`` is given those that the stop left longer: what is missing was durable. One may be gone altogether.
    """
    path = f"{files.directory}/{TABLES_NAME}"
    if not files.disk.exists(path):
        return "there are no tables of a clean stop"
    file = files.disk.open(path)
    try:
        problem = TABLES_FORMAT.problem(file.pread(HEADER_BYTES, 0), 0, 0)
        if problem:
            return problem
        reader = _CheckedReader(file)
        (count,) = _FILE_COUNT.unpack(reader.read(_FILE_COUNT.size))
        summaries: dict[int, FileSummary] = {}
        for number, record_bytes, valid_bytes, is_frozen in _FILE.iter_unpack(reader.read(count * _FILE.size)):
            summaries[number] = FileSummary(record_bytes, valid_bytes, bool(is_frozen))
        loaded = LocationTable()
        for _ in loaded.load_in_pieces(reader.read):
            yield None
        reader.finish()
    except ValueError as error:
        return str(error)
    finally:
        file.close()
    problem = ""
    for number, summary in summaries.items():
        path, said = files.path(number), HEADER_BYTES + summary.record_bytes
        size = files.handle(number).size if files.disk.exists(path) else 0
        if size < said:
            short_files.append(ShortFile(path, said, size))
        if size != said:
            problem = problem or f"{path} has {size} bytes, the tables say {said}"
    if problem:
        return problem
    for number, summary in summaries.items():
        files.adopt(number, summary)
    table.take_over(loaded)
    return ""
