# docker buildx bake -f docker/bake.hcl          every image (run it at the top of the project)
# docker buildx bake -f docker/bake.hcl cpu      every CPU image; gpu-cuda13-0-3-py312 is one GPU image
# TORCH_INDEX=... docker buildx bake -f docker/bake.hcl cpu

variable "IMAGE" {
  default = "deploycnn"
}

variable "VERSION" {
  default = "0.1.0"
}

variable "REVISION" {
  default = ""
}

variable "TORCH_INDEX" {
  default = ""
}

variable "TENSORRT" {
  default = "auto"
}

group "default" {
  targets = ["cpu", "gpu"]
}

target "common" {
  context   = "."
  platforms = ["linux/amd64"]
}

target "cpu" {
  name       = "cpu-py${replace(python, ".", "")}"
  inherits   = ["common"]
  dockerfile = "docker/cpu.Dockerfile"
  matrix = {
    python = ["3.11", "3.12", "3.13"]
  }
  args = {
    PYTHON      = python
    TORCH_INDEX = TORCH_INDEX
    VERSION     = VERSION
    REVISION    = REVISION
  }
  tags = ["${IMAGE}:${VERSION}-cpu-py${python}"]
}

target "gpu" {
  name       = "gpu-cuda${replace(cuda, ".", "-")}-py${replace(python, ".", "")}"
  inherits   = ["common"]
  dockerfile = "docker/gpu.Dockerfile"
  matrix = {
    cuda   = ["13.0.3", "13.1.1"]
    python = ["3.11", "3.12", "3.13"]
  }
  args = {
    CUDA     = cuda
    PYTHON   = python
    TENSORRT = TENSORRT
    VERSION  = VERSION
    REVISION = REVISION
  }
  tags = ["${IMAGE}:${VERSION}-cuda${cuda}-py${python}"]
}
