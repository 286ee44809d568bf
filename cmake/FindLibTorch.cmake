# Finds libtorch inside the torch wheel of the project's virtual environment (or of TDOCK_TORCH_DIR) and defines
# LibTorch::LibTorch and LibTorch_VERSION. A CPU wheel and a CUDA wheel both work, without a CUDA toolkit. The wheel's own
# CMake package is not used: it redefines protobuf's targets and, for a CUDA wheel, demands a toolkit.
#
# LibTorch::NCCL is what ProcessGroupNCCL.hpp needs: headers of NCCL and CUDA. Without them it does not exist. No library is
# linked: torch for CUDA has them.

set(TDOCK_TORCH_DIR "" CACHE PATH "Folder of the installed torch package (the one with lib/ and include/)")
set(torch_dir ${TDOCK_TORCH_DIR})
if(NOT torch_dir)
  file(GLOB torch_dir ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()

find_library(LibTorch_ALL torch PATHS ${torch_dir}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CPU torch_cpu PATHS ${torch_dir}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10 c10 PATHS ${torch_dir}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CUDA torch_cuda PATHS ${torch_dir}/lib NO_DEFAULT_PATH NO_CACHE)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ALL LibTorch_CPU LibTorch_C10
  REASON_FAILURE_MESSAGE "run 'make build', which installs the torch wheel into .venv, or set TDOCK_TORCH_DIR")

file(STRINGS ${torch_dir}/version.py LibTorch_VERSION REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${LibTorch_VERSION}")

# Only these folders of the wheel's headers are made visible: beside them it carries old protobuf, fmt and pybind11
# headers that would hide the system's.
set(visible ${CMAKE_BINARY_DIR}/torch_headers)
file(MAKE_DIRECTORY ${visible})
foreach(folder ATen c10 torch caffe2)
  file(CREATE_LINK ${torch_dir}/include/${folder} ${visible}/${folder} SYMBOLIC)
endforeach()

add_library(LibTorch::LibTorch INTERFACE IMPORTED)
target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE ${visible} ${visible}/torch/csrc/api/include)
target_link_directories(LibTorch::LibTorch INTERFACE ${torch_dir}/lib)
target_link_libraries(LibTorch::LibTorch INTERFACE ${LibTorch_CPU} ${LibTorch_C10})
# libtorch.so is empty, and needs the other libraries of its wheel: of one for CUDA also libtorch_cuda, which registers its
# kernels when it is loaded. So executables that were linked with the one wheel use the GPUs where the other is installed.
target_link_options(LibTorch::LibTorch INTERFACE "LINKER:--no-as-needed,${LibTorch_ALL},--as-needed")
if(LibTorch_CUDA)
  # What libtorch_cuda needs itself is in other packages. Only what uses LibTorch::NCCL names a symbol of it.
  target_link_options(LibTorch::LibTorch INTERFACE "LINKER:--allow-shlib-undefined")
endif()

# Headers of NVIDIA's packages: those that a torch for CUDA depends on, or else those of .venv-nccl.
foreach(packages ${torch_dir}/.. ${PROJECT_SOURCE_DIR}/.venv-nccl/lib/python3*/site-packages)
  file(GLOB nvidia_headers ${packages}/nvidia/*/include ${packages}/nvidia/*/include/cccl)
  find_path(nccl_header nccl.h PATHS ${nvidia_headers} NO_DEFAULT_PATH NO_CACHE)
  find_path(cuda_header cuda_runtime_api.h PATHS ${nvidia_headers} NO_DEFAULT_PATH NO_CACHE)
  if(nccl_header AND cuda_header)
    set(has_nccl ON)
    break()
  endif()
endforeach()
tdock_optional(has_nccl "NCCL, which connects GPUs" "`scripts/setup.sh build` installs its headers into .venv-nccl")
if(has_nccl)
  # Names that the headers of c10d mention, of libraries whose packages take a gigabyte. Nothing of ours calls them, nor has
  # objects of these types. What is found comes first.
  set(names ${CMAKE_BINARY_DIR}/cuda_names)
  file(CONFIGURE OUTPUT ${names}/cublas_v2.h CONTENT "typedef struct cublasContext* cublasHandle_t;\ntypedef int cublasStatus_t;\n")
  file(CONFIGURE OUTPUT ${names}/cublasLt.h CONTENT "typedef struct cublasLtContext* cublasLtHandle_t;\n")
  file(CONFIGURE OUTPUT ${names}/cusparse.h CONTENT
    "typedef struct cusparseContext* cusparseHandle_t;\ntypedef int cusparseStatus_t;\n")
  file(CONFIGURE OUTPUT ${names}/cusolverDn.h CONTENT "typedef struct cusolverDnContext* cusolverDnHandle_t;\n")
  file(CONFIGURE OUTPUT ${names}/cusolver_common.h CONTENT "typedef int cusolverStatus_t;\n")
  # A torch for CPUs has all headers of c10/cuda but this one, which a build of torch for CUDA generates.
  file(CONFIGURE OUTPUT ${names}/c10/cuda/impl/cuda_cmake_macros.h CONTENT "#define C10_CUDA_BUILD_SHARED_LIBS\n")
  add_library(LibTorch::NCCL INTERFACE IMPORTED)
  target_include_directories(LibTorch::NCCL SYSTEM INTERFACE ${nvidia_headers} ${names})
endif()
