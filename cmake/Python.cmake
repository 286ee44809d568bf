# The Python package: the extension transfer_dock._native, and in the build folder the package as Python imports it,
# python/transfer_dock (PYTHONPATH=build/release/python).
#
# The extension is for the version of Python that it is built with, that of .venv-wheel or TDOCK_PYTHON_EXECUTABLE; from
# 3.12 on also for later ones (Python's stable ABI). `pip install .` (scikit-build-core) brings its own.
# The target tdock_wheel builds what is installed into a wheel: the component python_extension, and the component python
# with the executables and what they load.

set(TDOCK_PYTHON_EXECUTABLE "" CACHE FILEPATH "The Python to build the package for")
set(package_python ${TDOCK_PYTHON_EXECUTABLE})
if(SKBUILD)
  set(package_python ${Python_EXECUTABLE})
  # pip shows nothing of what a build prints. Who waits at a terminal is told there.
  execute_process(COMMAND sh -c "printf '\\n  compiling the extension and the server, which takes two to three minutes on two \
cores; pip install -v shows each step\\n' > /dev/tty" ERROR_QUIET)
elseif(NOT package_python)
  file(GLOB found ${PROJECT_SOURCE_DIR}/.venv-wheel/lib/python3*/site-packages/nanobind)
  if(found)
    set(package_python ${PROJECT_SOURCE_DIR}/.venv-wheel/bin/python)
  endif()
endif()
if(TDOCK_SANITIZE)
  set(package_python "")  # a Python that is not sanitized cannot load it
else()
  tdock_optional(package_python "Python package" "`scripts/setup.sh build` installs nanobind into .venv-wheel")
endif()
set(package_executables tdock-dock tdock tdock-serve tdock-runs tdock-launch)

# tdock_python_module(NAME USES module…)
#
# Declares src/NAME, the sources of the extension, as tdock_module() does modules.
function(tdock_python_module name)
  cmake_parse_arguments(arg "" "" "USES" ${ARGN})
  if(NOT package_python)
    return()
  endif()
  set(Python_EXECUTABLE ${package_python})
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
  if(Python_VERSION VERSION_GREATER_EQUAL 3.12 AND NOT TARGET Python::SABIModule)  # which CMake knows from 3.26 on
    add_library(Python::SABIModule INTERFACE IMPORTED)
    target_include_directories(Python::SABIModule SYSTEM INTERFACE ${Python_INCLUDE_DIRS})
    set(Python_SOSABI abi3)
  endif()
  # nanobind is headers and sources: those of .venv-wheel serve any Python.
  file(GLOB nanobind_ROOT ${PROJECT_SOURCE_DIR}/.venv-wheel/lib/python3*/site-packages/nanobind/cmake)
  if(SKBUILD OR NOT nanobind_ROOT)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
  endif()
  find_package(nanobind CONFIG REQUIRED)

  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  nanobind_add_module(tdock_${name} NB_STATIC STABLE_ABI NOMINSIZE ${sources})
  tdock_compile_together(tdock_${name} PLAIN)
  set(nanobind nanobind-static)
  if(TARGET nanobind-static-abi3)
    set(nanobind nanobind-static-abi3)
  endif()
  # Warnings of a library are not ours. Its sources are made to be compiled as one, too.
  target_compile_options(${nanobind} PRIVATE -w)
  set_target_properties(${nanobind} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  get_target_property(nanobind_includes ${nanobind} INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(tdock_${name} SYSTEM PRIVATE ${nanobind_includes} ${Python_INCLUDE_DIRS})
  tdock_targets(used ${arg_USES})
  target_link_libraries(tdock_${name} PRIVATE ${used})
  set_target_properties(tdock_${name} PROPERTIES OUTPUT_NAME _native
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/transfer_dock)
endfunction()

# tdock_python_package()
#
# Puts the package together, with links to the executables, which need not have been built. After all targets of modules
# and executables.
function(tdock_python_package)
  if(NOT package_python)
    return()
  endif()
  # Links to the sources, so that an edited file needs no build.
  string(REPLACE ";" "," executables "${package_executables}")
  add_custom_target(tdock_python_package ALL
    COMMAND ${CMAKE_COMMAND} -D FROM=${PROJECT_SOURCE_DIR}/python/transfer_dock
            -D TO=${CMAKE_BINARY_DIR}/python/transfer_dock -D EXECUTABLES=${executables}
            -P ${PROJECT_SOURCE_DIR}/cmake/LinkPackage.cmake
    VERBATIM)
  add_dependencies(tdock_python_package tdock_python tdock-dock)

  # Installed as site-packages/transfer_dock, they find the libraries of other packages beside it. They are linked with that
  # path after the one of this machine, which auditwheel removes: what CMake would change when it installs gets, before
  # that, a run path that ends with the current folder.
  set(libtorch tdock tdock-serve tdock-runs tdock-launch tdock_inference_episodes_plugin
      tdock_runtime_collective_nccl_plugin)
  set(no_libraries tdock-dock)
  set(arrow "")
  if(TDOCK_TORCH)  # only trainers load it
    set(arrow tdock_data_parquet)
  endif()
  set(libtorch_path ${torch_dir}/lib "$ORIGIN/../../torch/lib")
  set(no_libraries_path "")
  set(arrow_path ${arrow_dir} "$ORIGIN/../../pyarrow")
  add_custom_target(tdock_wheel)
  add_dependencies(tdock_wheel tdock_python)
  install(TARGETS tdock_python LIBRARY DESTINATION transfer_dock COMPONENT python_extension EXCLUDE_FROM_ALL)
  foreach(libraries libtorch no_libraries arrow)
    foreach(target ${${libraries}})
      if(TARGET ${target})
        add_dependencies(tdock_wheel ${target})
        set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${${libraries}_path}")
        install(TARGETS ${target} DESTINATION transfer_dock/bin COMPONENT python EXCLUDE_FROM_ALL)
      endif()
    endforeach()
  endforeach()
  if(TDOCK_TORCH)
    # Which version of torch the executables must find; python/transfer_dock/executables.py reads it.
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_version CONTENT "${LibTorch_VERSION}\n")
    install(FILES ${CMAKE_BINARY_DIR}/torch_version DESTINATION transfer_dock/bin COMPONENT python EXCLUDE_FROM_ALL)
  endif()
endfunction()
