"""Writing files so that a kill or a full disk never leaves half of one."""

from __future__ import annotations

import errno
import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pliant.errors import PliantError

if TYPE_CHECKING:
    from torch import Tensor

_UMASK = os.umask(0)
os.umask(_UMASK)


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary neighbour of `path`, sync it, and move it into place.

    Raises:
        PliantError: the disk is full or the folder cannot be written; what `path` held before stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_orphans(path)
        write(temporary)
        temporary.chmod(0o666 & ~_UMASK)  # safetensors makes files that nobody else can read
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise explained(path, error) from error
    except Exception as error:
        # safetensors reports a full disk as an error type of its own, with the reason in its text.
        if "os error 28" in str(error).lower() or "no space left" in str(error).lower():
            raise explained(path, OSError(errno.ENOSPC, "No space left on device")) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove_orphans(path: Path) -> None:
    """Delete the temporary neighbours of `path` whose writers were killed."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        process = temporary.name.rsplit(".", 2)[1]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            temporary.unlink(missing_ok=True)
        except (ValueError, PermissionError):
            continue


def explained(path: Path, error: OSError) -> PliantError:
    """What an error of writing to `path` means for a user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PliantError(
            f"{path}: the disk is full; what was saved before is intact; free some space and go on (a run: with --resume)"
        )
    return PliantError(f"{path}: cannot be written ({error.strerror or error})")


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """One safetensors file; tensors are made contiguous and moved to the CPU."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    write_atomic(path, lambda temporary: save_file(plain, temporary, dict(metadata or {"format": "pt"})))


def read_json(path: Path) -> Any:
    """Raises PliantError where the file is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PliantError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PliantError(f"{path}: not readable as JSON ({error})") from error


@contextmanager
def held(path: Path, wait: bool) -> Iterator[IO[str] | None]:
    """An exclusive lock that the system releases when the process ends, however it ends; None where another holds it."""
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise explained(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        yield file
