"""CUDA: TVM writes kernels as source and says that all is well even where nothing can compile them. Here they are compiled.

NVRTC does it, which comes with PyTorch's CUDA wheels and needs no GPU, no toolkit and no C++ headers; nvcc where there
is no NVRTC. The compiled kernels (cubin) lie in the artifact and are what runs; TVM's own way at load time looks for
a toolkit on the machine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deploycnn.backends.tvm._graph import translated
from deploycnn.backends.tvm._library import Cpu, library
from deploycnn.errors import BackendError, Unavailable

_KERNEL = re.compile(r'extern "C" __global__ .*?\b(\w+_kernel\w*)\([^;{]*\)\s*\{')

# What TVM's source includes under NVRTC, as far as it uses it: the C++ headers themselves come in no wheel of PyTorch's.
_HEADERS = {
    "cuda/std/cstdint": """#pragma once
namespace cuda { namespace std {
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
} }
""",
    "cuda/std/type_traits": """#pragma once
namespace cuda { namespace std {
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_integral { static constexpr bool value = A(1) / A(2) == A(0); };
template <class A> struct is_signed { static constexpr bool value = A(-1) < A(0); };
template <class A> struct is_unsigned { static constexpr bool value = !is_signed<A>::value; };
template <class A> struct is_floating_point { static constexpr bool value = !is_integral<A>::value; };
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
} }
""",
}


def compiler() -> str:
    """What compiles kernels on this machine: `nvrtc`, the path of nvcc, or "" where there is neither."""
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None:
        return "nvrtc"
    return shutil.which("nvcc") or ""


def compiler_version() -> str:
    """`NVRTC 13.0.88`, or nvcc's last line about itself."""
    if compiler() == "nvrtc":
        try:
            return f"NVRTC {importlib.metadata.version('nvidia-cuda-nvrtc')}"
        except importlib.metadata.PackageNotFoundError:
            return "NVRTC"
    words = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout.split()
    return f"nvcc {words[-1]}" if words else "nvcc"


def has_runtime() -> bool:
    """Whether this TVM's package holds the library that launches kernels."""
    spec = importlib.util.find_spec("tvm")
    return spec is not None and any(Path(spec.origin or "").parent.glob("lib*/libtvm_runtime_cuda.so"))


def target_of(capability: int, cpu: Cpu) -> Any:
    """The `tvm.target.Target` of a compute capability (89 for 8.9), with limits that every GPU since 7.5 has."""
    device = {
        "kind": "cuda",
        "arch": f"sm_{capability}",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "max_num_threads": 1024,
        "thread_warp_size": 32,
    }
    return library().target.Target(device, host={"kind": "llvm", "mcpu": cpu.mcpu})


def build(module: Any, target: Any) -> Any:
    """A Relax executable for a GPU, from an imported module: TVM's default schedules, one thread block at a time."""
    tvm = library()
    with target, translated("TVM cannot build this graph for CUDA", "use another backend for this target"):
        return tvm.compile(module, target=target)


def source_of(executable: Any) -> str:
    """The CUDA source of all kernels of an executable.

    Raises:
        BackendError: there is none: nothing would run on a GPU.
    """
    sources = [str(module.inspect_source()) for module in _modules(executable.mod) if module.kind == "cuda"]
    if not sources:
        raise BackendError("TVM was to write CUDA kernels", found="its library holds none", remedy="report this with the model")
    return "\n".join(sources)


def _modules(module: Any) -> Iterable[Any]:
    yield module
    for imported in module.imports:
        yield from _modules(imported)


def kernels_of(source: str) -> list[str]:
    """Names of the kernels that a source defines."""
    return _KERNEL.findall(source)


def compile_kernels(source: str, capability: int) -> bytes:
    """Kernels as a cubin for one compute capability.

    Raises:
        Unavailable: there is nothing to compile with.
        BackendError: the compiler's words.
    """
    found = compiler()
    if not found:
        raise Unavailable(
            "TVM's CUDA kernels cannot be compiled",
            found="neither NVRTC nor nvcc",
            remedy="pip install cuda-bindings nvidia-cuda-nvrtc, or put nvcc on PATH",
        )
    cubin = _by_nvrtc(source, capability) if found == "nvrtc" else _by_nvcc(found, source, capability)
    missing = [name for name in kernels_of(source) if name.encode() not in cubin]
    if missing:
        raise BackendError(
            "TVM's kernels were compiled", found=f"not among them: {', '.join(missing)}", remedy="report this with the model"
        )
    return cubin


def _by_nvrtc(source: str, capability: int) -> bytes:
    try:
        from cuda.bindings import nvrtc  # type: ignore[import-untyped]

        headers = [text.encode() for text in _HEADERS.values()]
        names = [name.encode() for name in _HEADERS]
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", len(headers), headers, names)
        options = [f"--gpu-architecture=sm_{capability}", "-default-device", *(f"-I{path}" for path in _include_folders())]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
            nvrtc.nvrtcGetProgramLog(program, log)
            raise _refused(capability, f"{status.name}: {log.decode(errors='replace')}")
        cubin: bytes = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        nvrtc.nvrtcDestroyProgram(program)
        return cubin
    except (ImportError, RuntimeError, OSError) as error:  # the bindings are there, the library that they bind is not
        raise Unavailable("NVRTC cannot be loaded", found=str(error)[:300], remedy="pip install nvidia-cuda-nvrtc") from error


def _include_folders() -> list[Path]:
    """Folders with cuda_fp16.h and cuda_bf16.h."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(path) for path in (spec.submodule_search_locations or [])] if spec else []
    found = [header.parent for root in roots for header in sorted(root.glob("*/include/cuda_fp16.h"))]
    return [*found, *(path for path in (Path("/usr/local/cuda/include"),) if path.is_dir())]


def _by_nvcc(nvcc: str, source: str, capability: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.cu")
        path.write_text(source, encoding="utf-8")
        command = [nvcc, f"-arch=sm_{capability}", "-cubin", "-o", str(path.with_suffix(".cubin")), str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise _refused(capability, ran.stderr)
        return path.with_suffix(".cubin").read_bytes()


def _refused(capability: int, words: str) -> BackendError:
    errors = [line.strip() for line in words.splitlines() if "error" in line.lower()] or words.split("\n")[:1]
    return BackendError(
        f"TVM's kernels do not compile for sm_{capability}",
        found=" ".join(errors)[:400],
        remedy="use another backend for this target, or another capability",
    )


def fingerprint(source: str) -> str:
    """SHA-256 of a source, by which its compiled kernels are found again."""
    return hashlib.sha256(source.encode()).hexdigest()


def hand_over(cubins: Mapping[str, bytes], capability: int) -> None:
    """Gives TVM's runtime compiled kernels where it would compile their source, looking for a CUDA toolkit.

    Args:
        cubins: kernels by the fingerprint of their source.
        capability: of the GPU; source that is not among them is compiled for it.
    """
    library()
    import tvm_ffi

    def compiled(source: str) -> bytes:
        return cubins.get(fingerprint(source)) or compile_kernels(source, capability)

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)
