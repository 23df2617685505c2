"""The cache under everything that can happen to one: two runs at once, kills, damage, full and forbidden disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn import store as store_module
from deploycnn.disk import make_folder
from deploycnn.errors import StoreError
from deploycnn.store import EntryFacts, Key, Store, cache_root, disk_errors, file_sha256, lock, write_atomic

SRC = str(Path(__file__).parents[1] / "src")
KEY = Key(stage="compile", parts={"graph": "ab12", "options": {"threads": 1, "trials": None}, "versions": ["tvm 0.27"]})


@pytest.fixture
def lines() -> list[str]:
    """What the store said."""
    return []


@pytest.fixture
def cache(tmp_path: Path, lines: list[str]) -> Store:
    return Store(tmp_path / "cache", lines.append)


def fill(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (folder / "deep").mkdir()
    (folder / "deep" / "facts.json").write_text('{"a": 1}')


def never(folder: Path) -> None:
    raise AssertionError(f"{folder} is made again")


def everything_under(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".owner")]


# --- keys ---------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_a_key_does_not_depend_on_the_order_of_its_parts(parts: dict[str, object]) -> None:
    turned = dict(reversed(parts.items()))
    assert Key(stage="s", parts=parts).digest == Key(stage="s", parts=turned).digest


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=3), st.dictionaries(st.text(), json_values, max_size=3))
def test_other_parts_have_another_digest(one: dict[str, object], other: dict[str, object]) -> None:
    same = Key(stage="s", parts=one).digest == Key(stage="s", parts=other).digest
    assert same == (repr(sorted(one.items())) == repr(sorted(other.items())))


def test_a_key_survives_a_round_trip_through_json() -> None:
    assert Key.model_validate_json(KEY.model_dump_json()).digest == KEY.digest
    assert KEY.digest != Key(stage="export", parts=KEY.parts).digest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), Path("x"), b"x"])
def test_a_key_of_anything_but_json_is_an_error(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        _ = Key(stage="s", parts={"x": value}).digest


# --- build, reuse, list, remove -----------------------------------------------------------


def test_what_was_made_once_is_reused(cache: Store, lines: list[str]) -> None:
    assert cache.get(KEY) is None
    first = cache.build(KEY, fill)
    again = cache.build(KEY, never)
    assert (first.reused, again.reused) == (False, True)
    assert first.path == again.path == cache.get(KEY)
    assert (again.path / "deep" / "facts.json").read_text() == '{"a": 1}'
    assert lines == []


def test_another_store_over_the_same_folder_finds_it(cache: Store) -> None:
    built = cache.build(KEY, fill)
    assert Store(cache.root).get(KEY) == built.path


def test_other_parts_are_made_apart(cache: Store) -> None:
    cache.build(KEY, fill)
    other = Key(stage=KEY.stage, parts={**KEY.parts, "graph": "cd34"})
    assert cache.get(other) is None
    assert not cache.build(other, fill).reused


def test_entries_are_listed_by_last_use_and_removed(cache: Store) -> None:
    keys = [Key(stage="train", parts={"n": n}) for n in range(3)]
    for age, key in enumerate(keys):
        manifest = cache.build(key, fill).path.parent / "manifest.json"
        os.utime(manifest, (1000 + age, 1000 + age))
    cache.get(keys[0])  # that is a use
    listed = cache.entries()
    assert [facts.digest for facts in listed] == [keys[1].digest, keys[2].digest, keys[0].digest]
    assert all(facts.stage == "train" and facts.size_bytes > 10_240 for facts in listed)
    cache.remove(listed[0])
    assert cache.get(keys[1]) is None
    assert len(cache.entries()) == 2
    assert listed[0] not in cache.entries()


def test_removing_what_is_gone_already_is_no_error(cache: Store) -> None:
    cache.build(KEY, fill)
    facts: EntryFacts = cache.entries()[0]
    cache.remove(facts)
    cache.remove(facts)
    assert cache.entries() == []


def test_a_shared_folder_outlives_entries(cache: Store) -> None:
    folder = cache.shared("tvm/znver3")
    (folder / "database.json").write_text("[]")
    assert (cache.shared("tvm/znver3") / "database.json").exists()
    assert cache.entries() == []


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), StoreError("no", remedy="none")])
def test_a_build_that_fails_leaves_nothing(cache: Store, error: BaseException) -> None:
    def make(folder: Path) -> None:
        fill(folder)
        raise error

    with pytest.raises(type(error)):
        cache.build(KEY, make)
    assert everything_under(cache.root) == []
    assert not cache.build(KEY, fill).reused


def test_a_build_may_build_another_entry(cache: Store) -> None:
    inner = Key(stage="inner", parts={})
    cache.build(KEY, lambda folder: (folder / "copy").write_bytes((cache.build(inner, fill).path / "weights.bin").read_bytes()) and None)
    assert cache.build(inner, never).reused
    assert cache.build(KEY, never).reused


# --- damage -------------------------------------------------------------------------------


def cut(entry: Path) -> None:
    os.truncate(entry / "files" / "weights.bin", 5000)


def flip_a_bit(entry: Path) -> None:
    path = entry / "files" / "weights.bin"
    data = bytearray(path.read_bytes())
    data[777] ^= 1
    path.write_bytes(data)


def flip_a_bit_and_turn_back_the_clock(entry: Path) -> None:
    path = entry / "files" / "weights.bin"
    before = path.stat()
    flip_a_bit(entry)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def lose_a_file(entry: Path) -> None:
    (entry / "files" / "deep" / "facts.json").unlink()


def put_a_folder_in_its_place(entry: Path) -> None:
    lose_a_file(entry)
    (entry / "files" / "deep" / "facts.json").mkdir()


def lose_the_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def empty_the_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_bytes(b"")


def garble_the_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_bytes(b"\x00\xff{]")


def tear_the_manifest(entry: Path) -> None:
    os.truncate(entry / "manifest.json", 100)


def swap_the_manifest(entry: Path) -> None:
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text.replace("ab12", "cd34"))


DAMAGES = [
    cut,
    flip_a_bit,
    flip_a_bit_and_turn_back_the_clock,
    lose_a_file,
    put_a_folder_in_its_place,
    lose_the_manifest,
    empty_the_manifest,
    garble_the_manifest,
    tear_the_manifest,
    swap_the_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_dropped_with_one_line_and_made_again(cache: Store, lines: list[str], damage: Callable[[Path], None]) -> None:
    entry = cache.build(KEY, fill).path.parent
    damage(entry)
    built = cache.build(KEY, fill)
    assert not built.reused
    assert len(lines) == 1
    assert "damaged" in lines[0]
    assert "compile" in lines[0]
    assert cache.build(KEY, never).reused


@pytest.mark.parametrize("damage", DAMAGES)
def test_get_drops_a_damaged_entry(cache: Store, lines: list[str], damage: Callable[[Path], None]) -> None:
    damage(cache.build(KEY, fill).path.parent)
    assert cache.get(KEY) is None
    assert cache.get(KEY) is None
    assert len(lines) == 1
    assert everything_under(cache.root) == []


@pytest.mark.parametrize("damage", [cut, flip_a_bit, lose_a_file, lose_the_manifest])
def test_damage_to_a_large_file_is_found(cache: Store, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]) -> None:
    monkeypatch.setattr(store_module, "ALWAYS_HASHED_BYTES", 100)
    entry = cache.build(KEY, fill).path.parent
    assert cache.get(KEY)
    damage(entry)
    assert cache.get(KEY) is None


def test_a_large_file_that_nobody_touched_is_not_hashed_again(cache: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "ALWAYS_HASHED_BYTES", 100)
    cache.build(KEY, lambda folder: (folder / "large").write_bytes(bytes(1000)) and None)
    hashed: list[Path] = []
    monkeypatch.setattr(store_module, "file_sha256", lambda path: hashed.append(path) or file_sha256(path))
    assert cache.get(KEY)
    assert hashed == []
    os.utime(cache.root / "entries" / KEY.stage / KEY.digest / "files" / "large")  # copied, or restored from a backup
    assert cache.get(KEY)
    assert [path.name for path in hashed] == ["large"]


# --- two runs at once, and kills ----------------------------------------------------------

BUILDER = """
import os, signal, sys, time
from pathlib import Path
from deploycnn.store import Key, Store
root, notes, together = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def make(folder):
    (folder / "half").write_bytes(b"x" * 1000)
    (notes / f"maker-{os.getpid()}").touch()
    if together == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    while len(list(notes.glob("started-*"))) < together:
        time.sleep(0.01)
    if together > 1:
        time.sleep(1.5)  # the others wait by now, and have said so
    (folder / "whole").write_bytes(b"y" * 1000)
said = []
store, key = Store(root, said.append), Key(stage="slow", parts={})
(notes / f"started-{os.getpid()}").touch()
built = store.build(key, make)
print(built.reused, (built.path / "whole").stat().st_size, said)
"""
KILLED = 0  # in the middle of making
UNTIL_RELEASED = 2  # waits for a second start, or for `release`


def start_builder(root: Path, notes: Path, together: int) -> subprocess.Popen[str]:
    """A process that makes one entry, and stays at it until so many are started."""
    notes.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILDER, str(root), str(notes), str(together)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SRC}, stdout=subprocess.PIPE, text=True)


def makers(notes: Path) -> list[int]:
    return [int(path.name.removeprefix("maker-")) for path in notes.glob("maker-*")]


def wait_for_maker(notes: Path) -> None:
    deadline = time.monotonic() + 60
    while not makers(notes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def release(notes: Path) -> None:
    (notes / "started-0").touch()


def test_several_runs_that_start_at_once_make_an_entry_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    runs = [start_builder(tmp_path / "cache", notes, together=3) for _ in range(3)]
    said = [run.communicate(timeout=60)[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    (maker,) = makers(notes)
    assert sorted(line.split()[0] for line in said) == ["False", "True", "True"]
    waited = [line for line in said if line.startswith("True")]
    assert all(f"locked by pid {maker} since 20" in line for line in waited)


def test_a_killed_run_leaves_nothing_that_counts_and_holds_nothing(tmp_path: Path) -> None:
    cache, notes = tmp_path / "cache", tmp_path / "notes"
    killed = start_builder(cache, notes, KILLED)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in everything_under(cache)] == ["half"]
    said, _ = start_builder(cache, notes, together=1).communicate(timeout=60)
    assert said.split()[:2] == ["False", "1000"]
    assert not list((cache / "temp").iterdir())


def test_what_killed_runs_left_of_other_entries_is_swept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    start_builder(cache, tmp_path / "notes", KILLED).communicate(timeout=60)
    assert list((cache / "temp").iterdir())
    Store(cache).build(KEY, fill)
    assert not list((cache / "temp").iterdir())


def test_what_a_living_run_is_making_is_not_swept(tmp_path: Path) -> None:
    cache, notes = tmp_path / "cache", tmp_path / "notes"
    living = start_builder(cache, notes, UNTIL_RELEASED)
    wait_for_maker(notes)
    Store(cache).build(KEY, fill)
    release(notes)
    assert living.communicate(timeout=60)[0].split()[:2] == ["False", "1000"]


def test_giving_up_on_another_run_says_who_holds_it(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    living = start_builder(tmp_path / "cache", notes, UNTIL_RELEASED)
    wait_for_maker(notes)
    with pytest.raises(StoreError, match=rf"locked by pid {living.pid} since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d.* \(making slow"):
        Store(tmp_path / "cache", [].append, wait_s=0.1).build(Key(stage="slow", parts={}), never)
    living.kill()
    living.communicate()


def test_a_lock_on_an_output_folder_names_the_folder(tmp_path: Path) -> None:
    with lock(tmp_path / "out" / ".lock", "run quickstart", wait_s=0):
        with pytest.raises(StoreError) as caught, lock(tmp_path / "out" / ".lock", "run other", wait_s=0):
            pass
    assert caught.value.asked == f"{tmp_path / 'out'} is in use"
    assert f"locked by pid {os.getpid()}" in caught.value.found
    assert "run quickstart" in caught.value.found
    with lock(tmp_path / "out" / ".lock", "run other", wait_s=0):
        assert not (tmp_path / "out" / ".lock.owner").read_text().startswith("run quickstart")


def test_a_lock_is_released_by_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), lock(tmp_path / "a.lock", "x", wait_s=0):
        raise ValueError("inside")
    with lock(tmp_path / "a.lock", "y", wait_s=0):
        assert (tmp_path / "a.lock.owner").exists()
    assert not (tmp_path / "a.lock.owner").exists()


@pytest.mark.parametrize("owner", ["", "{", "[]", "null", '{"pid": 1}'])
def test_an_owner_note_that_cannot_be_read_does_not_matter(tmp_path: Path, owner: str) -> None:
    with lock(tmp_path / "a.lock", "x", wait_s=0):
        (tmp_path / "a.lock.owner").write_text(owner)
        with pytest.raises(StoreError, match="locked by another process"), lock(tmp_path / "a.lock", "y", wait_s=0):
            pass


# --- disks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.EPERM, "permitted"),
        (errno.EFBIG, "ulimit"),
        (errno.EIO, "disk reports"),
    ],
)
def test_what_disks_say_is_translated_and_nothing_is_left(cache: Store, number: int, said: str) -> None:
    def make(folder: Path) -> None:
        fill(folder)
        raise OSError(number, os.strerror(number), str(folder / "weights.bin"))

    with pytest.raises(StoreError) as caught:
        cache.build(KEY, make)
    assert said in caught.value.found
    assert "weights.bin" in caught.value.asked
    assert caught.value.remedy
    assert isinstance(caught.value.__cause__, OSError)
    assert everything_under(cache.root) == []


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "no such file"), ConnectionResetError(errno.ECONNRESET, "reset")])
def test_errors_that_are_not_of_the_disk_go_through(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)), disk_errors(tmp_path):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("unexpected pos 576 vs 534"), OSError("1000000 requested and 409472 written")])
@pytest.mark.parametrize("free", [0, 50_000, 10**9])
def test_a_library_that_does_not_say_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, error: Exception
) -> None:
    monkeypatch.setattr("deploycnn.disk._free_bytes", lambda path: free)
    with pytest.raises(StoreError if free < 100_000 else type(error)), disk_errors(tmp_path):
        raise error


@pytest.mark.parametrize("where", ["", "sub", "sub/sub"])
def test_a_file_where_the_cache_should_be(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="a file stands where a folder should be"):
        Store(tmp_path / "file" / where).build(KEY, fill)
    assert (tmp_path / "file").read_text() == "mine"


def unmakeable(tmp_path: Path) -> list[Path]:
    """Folders that no user can make: in the kernel's own file system, of too long a name, through links in a circle."""
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    return [Path("/proc/no-such"), Path("/proc/no-such/sub"), tmp_path / ("n" * 300), tmp_path / "one" / "sub"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc, where no folder can be made")
@pytest.mark.parametrize("which", range(4))
def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path, which: int) -> None:
    folder = unmakeable(tmp_path)[which]
    writers: list[Callable[[], object]] = [
        lambda: make_folder(folder),
        lambda: write_atomic(folder / "file", "text"),
        lambda: Store(folder).build(KEY, fill),
    ]
    for write in writers:
        with pytest.raises(StoreError) as caught:
            write()
        assert "cannot be written" in caught.value.asked
        assert caught.value.found
        assert caught.value.remedy


def in_a_child(act: Callable[[], None]) -> str:
    """What `act` raised in a forked process, "" for nothing: for limits and users that cannot be taken back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = ""
        try:
            act()
        except StoreError as error:
            said = str(error)
        except BaseException:  # noqa: BLE001 - the child must not come back as a second pytest
            said = traceback.format_exc()
        finally:
            os.write(writer, (said or "nothing").encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return "" if said == "nothing" else said


def become_nobody() -> None:
    """Root is stopped by no permission."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_real_limit_on_file_size(cache: Store, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    write_atomic(tmp_path / "old.txt", "old")

    def act() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            write_atomic(tmp_path / "old.txt", "n" * 10_000)
        except StoreError:
            cache.build(KEY, fill)

    assert "ulimit" in in_a_child(act)
    assert (tmp_path / "old.txt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "old.txt"]
    assert everything_under(cache.root) == []


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_cache_of_somebody_else(cache: Store) -> None:
    import filelock  # noqa: F401 - nobody may not be allowed to read this Python

    cache.build(KEY, fill)
    for folder in (cache.root, *cache.root.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    for parent in cache.root.parents:
        if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(parent.stat().st_mode | 0o005)

    def act() -> None:
        become_nobody()
        assert Store(cache.root).get(KEY)
        Store(cache.root).build(Key(stage="other", parts={}), fill)

    said = in_a_child(act)
    for folder in (cache.root, *cache.root.rglob("*")):
        folder.chmod(0o755)
    assert "no permission" in said, said
    assert f"{KEY.digest}" not in said, "what is there can be read"
    assert "DEPLOYCNN_CACHE" in said


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_cache_that_may_not_be_entered(cache: Store) -> None:
    cache.build(KEY, fill)
    cache.root.chmod(0)

    def act() -> None:
        become_nobody()
        Store(cache.root).get(KEY)

    said = in_a_child(act)
    cache.root.chmod(0o755)
    assert "no permission" in said, said


@pytest.fixture
def tiny_disk(tmp_path: Path) -> object:
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    cache = Store(tiny_disk)
    small = cache.build(Key(stage="small", parts={}), fill)
    with pytest.raises(StoreError, match="the disk is full"):
        cache.build(KEY, lambda folder: (folder / "large").write_bytes(bytes(1_000_000)) and None)
    with pytest.raises(StoreError, match="the disk is full"):
        write_atomic(small.path.parent / "record.json", bytes(1_000_000))
    with pytest.raises(StoreError, match="the disk is full"):
        cache.build(KEY, lambda folder: np.save(folder / "images.npy", np.zeros(1_000_000, np.uint8)))
    assert cache.build(Key(stage="small", parts={}), never).reused
    assert not list((tiny_disk / "temp").iterdir())


# --- single files -------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=1000) | st.text(max_size=1000))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: bytes | str) -> None:
    path = tmp_path_factory.getbasetemp() / "round" / "trip"
    write_atomic(path, data)
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert [found.name for found in path.parent.iterdir()] == ["trip"]


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"record\.json cannot be written"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_digest_of_a_file_is_that_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEPLOYCNN_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
    monkeypatch.setenv("DEPLOYCNN_CACHE", "relative")
    assert cache_root() == Path.cwd() / "relative"
    monkeypatch.delenv("DEPLOYCNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert "deploycnn" in cache_root().name


def test_the_store_is_quiet_unless_told(tmp_path: Path) -> None:
    """Without `warn` its lines go to the log, which Python shows on stderr."""
    code = f"""
        from pathlib import Path
        from deploycnn.store import Key, Store
        store, key = Store(Path({str(tmp_path)!r})), Key(stage="s", parts={{}})
        (store.build(key, lambda folder: (folder / "a").write_text("a") and None).path / "a").write_text("b")
        store.get(key)
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "PYTHONPATH": SRC}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert "damaged" in answer.stderr
