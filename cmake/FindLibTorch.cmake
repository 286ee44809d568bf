# Finds libtorch inside the torch wheel of the project's virtual environment (or of TDOCK_TORCH_DIR) and defines
# LibTorch::LibTorch. A CPU wheel and a CUDA wheel both work, without a CUDA toolkit. The wheel's own CMake package
# is not used: it redefines protobuf's targets and, for a CUDA wheel, demands a toolkit.
#
# LibTorch::NCCL is what ProcessGroupNCCL.hpp of a CUDA wheel needs: headers of NCCL and CUDA from the wheels that it
# depends on, and TDOCK_NCCL. Without them it is empty.

set(TDOCK_TORCH_DIR "" CACHE PATH "Folder of the installed torch package (the one with lib/ and include/)")
if(NOT TDOCK_TORCH_DIR)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 found)
    set(TDOCK_TORCH_DIR ${found} CACHE PATH "" FORCE)
  endif()
endif()

find_library(LibTorch_CPU torch_cpu PATHS ${TDOCK_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10 c10 PATHS ${TDOCK_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(LibTorch_CUDA torch_cuda PATHS ${TDOCK_TORCH_DIR}/lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_CPU LibTorch_C10
  REASON_FAILURE_MESSAGE "run 'make build', which installs the torch wheel into .venv, or set TDOCK_TORCH_DIR")

# Only these folders of the wheel's headers are made visible: beside them it carries old protobuf, fmt and pybind11
# headers that would hide the system's.
set(visible ${CMAKE_BINARY_DIR}/torch_headers)
file(MAKE_DIRECTORY ${visible})
foreach(folder ATen c10 torch caffe2)
  file(CREATE_LINK ${TDOCK_TORCH_DIR}/include/${folder} ${visible}/${folder} SYMBOLIC)
endforeach()

add_library(LibTorch::LibTorch INTERFACE IMPORTED)
target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE ${visible} ${visible}/torch/csrc/api/include)
target_link_directories(LibTorch::LibTorch INTERFACE ${TDOCK_TORCH_DIR}/lib)
target_link_libraries(LibTorch::LibTorch INTERFACE ${LibTorch_CPU} ${LibTorch_C10})
target_link_options(LibTorch::LibTorch INTERFACE "-Wl,-rpath,${TDOCK_TORCH_DIR}/lib")
if(LibTorch_CUDA)
  # Only what uses LibTorch::NCCL names a symbol of libtorch_cuda; it registers its kernels when it is loaded.
  target_link_options(LibTorch::LibTorch INTERFACE
    "LINKER:--no-as-needed,${LibTorch_CUDA},--as-needed" "LINKER:--allow-shlib-undefined")
endif()

add_library(LibTorch::NCCL INTERFACE IMPORTED)
file(GLOB nvidia_headers ${TDOCK_TORCH_DIR}/../nvidia/*/include)
find_path(LibTorch_NCCL_HEADER nccl.h PATHS ${nvidia_headers} NO_DEFAULT_PATH)
find_path(LibTorch_CUDA_HEADER cuda_runtime_api.h PATHS ${nvidia_headers} NO_DEFAULT_PATH)
if(LibTorch_CUDA AND LibTorch_NCCL_HEADER AND LibTorch_CUDA_HEADER)
  target_include_directories(LibTorch::NCCL SYSTEM INTERFACE ${nvidia_headers})
  target_compile_definitions(LibTorch::NCCL INTERFACE TDOCK_NCCL)
endif()
