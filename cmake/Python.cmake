# The Python package: the extension transfer_dock._native, and in the build folder the package as Python imports it,
# python/transfer_dock (PYTHONPATH=build/release/python).
#
# The extension is for the version of Python that it is built with: that of .venv-wheel, or TDOCK_PYTHON_EXECUTABLE.
# `pip install .` (scikit-build-core) brings its own.

set(TDOCK_PYTHON_EXECUTABLE "" CACHE FILEPATH "The Python to build the package for, which has nanobind")
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
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind CONFIG REQUIRED)

  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  nanobind_add_module(tdock_${name} NB_STATIC NOMINSIZE ${sources})
  tdock_compile_together(tdock_${name} PLAIN)
  # Warnings of a library are not ours. Its sources are made to be compiled as one, too.
  target_compile_options(nanobind-static PRIVATE -w)
  set_target_properties(nanobind-static PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  get_target_property(nanobind_includes nanobind-static INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(tdock_${name} SYSTEM PRIVATE ${nanobind_includes} ${Python_INCLUDE_DIRS})
  tdock_targets(used ${arg_USES})
  target_link_libraries(tdock_${name} PRIVATE ${used})
  set_target_properties(tdock_${name} PROPERTIES OUTPUT_NAME _native
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/transfer_dock)
endfunction()

# tdock_python_package()
#
# Puts the package together, with the server in it. After the targets tdock_python and tdock-dock.
function(tdock_python_package)
  if(NOT package_python)
    return()
  endif()
  # Links to the sources, so that an edited file needs no build.
  add_custom_target(tdock_python_package ALL
    COMMAND ${CMAKE_COMMAND} -D FROM=${PROJECT_SOURCE_DIR}/python/transfer_dock
            -D TO=${CMAKE_BINARY_DIR}/python/transfer_dock -D PROGRAM=$<TARGET_FILE:tdock-dock>
            -P ${PROJECT_SOURCE_DIR}/cmake/LinkPackage.cmake
    VERBATIM)
  add_dependencies(tdock_python_package tdock_python tdock-dock)
  if(SKBUILD)
    install(TARGETS tdock_python LIBRARY DESTINATION transfer_dock COMPONENT python)
    install(TARGETS tdock-dock RUNTIME DESTINATION transfer_dock/bin COMPONENT python)
  endif()
endfunction()
