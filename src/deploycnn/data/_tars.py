"""Members of a compressed tar archive, read one after the other in memory: nothing is ever extracted to disk."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from deploycnn.data._files import corrupt, unreadable
from deploycnn.errors import DataError

_LARGEST_MEMBER_BYTES = 2**26  # a batch has 31 MB


def tar_members(path: Path, names: Sequence[str], *, expected: str, remedy: str) -> Iterator[tuple[str, bytes]]:
    """The regular files of these names (without folders) in the archive, in the archive's order.

    Args:
        expected: what the whole archive should be, for messages.

    Raises:
        DataError: not a whole archive, or some of the names are not in it.
    """
    missing = list(names)
    found = f"{path.stat().st_size:,} bytes" if path.exists() else "no file"
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in missing or not member.isreg() or member.size > _LARGEST_MEMBER_BYTES:
                    continue
                file = archive.extractfile(member)
                assert file is not None  # it is a regular file
                data = file.read()
                if len(data) != member.size:
                    raise EOFError(f"{name} ends after {len(data):,} of {member.size:,} bytes")
                missing.remove(name)
                yield name, data
                if not missing:
                    return
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise corrupt(path, expected=expected, found=f"{found}, {error}", remedy=remedy) from error
    except OSError as error:
        if error.errno is None:  # gzip's own complaints
            raise corrupt(path, expected=expected, found=f"{found}, {error}", remedy=remedy) from error
        raise unreadable(path, error) from error
    raise DataError(f"{path} is incomplete or corrupt", found=f"no {', no '.join(missing)} in it; expected {expected}", remedy=remedy)
