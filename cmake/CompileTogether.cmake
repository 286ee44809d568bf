# What makes compiling cheap: headers are read once for many sources.
#
# Most of what compiling a source costs is reading headers and instantiating their templates. So the sources of a target
# are compiled in batches, and the headers that everything includes are compiled once. Two sources of a module may
# therefore not define the same name, not even in unnamed namespaces.

set(TDOCK_BATCH 24 CACHE STRING "Sources that are compiled as one; 1: each alone, with all that it includes")

set(core_headers <algorithm> <array> <atomic> <cstdint> <functional> <map> <memory> <optional> <set> <span> <string>
    <thread> <utility> <variant> <vector> <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h>
    <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
    <absl/strings/str_split.h> <absl/time/time.h> <nlohmann/json.hpp>)

# tdock_precompile(TARGET HEADERS header… LINKS target… [OPTIONS flag…])
#
# A precompiled header for targets with the same flags, which name TARGET in REUSE_FROM.
function(tdock_precompile target)
  cmake_parse_arguments(arg "" "" "HEADERS;LINKS;OPTIONS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${target}.cc CONTENT "")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${target}.cc)
  target_link_libraries(${target} PRIVATE ${arg_LINKS})
  target_compile_options(${target} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${target} PRIVATE ${arg_HEADERS})
endfunction()

# Tests, and modules without a hot loop. Without any optimisation, the plain twins that the dock is compared with take ten
# times as long; but to optimise what sanitizers add to other tests takes longer than they do.
set(cold_options "")
set(test_options "")
if(TDOCK_BATCH GREATER 1)
  set(cold_options -O1)
  set(test_options -O1)
  if(TDOCK_SANITIZE)
    set(test_options -O0)
  endif()
  set(core_libraries absl::status absl::statusor absl::strings absl::time absl::flat_hash_map absl::flat_hash_set
      nlohmann_json::nlohmann_json)
  tdock_precompile(tdock_core_pch HEADERS ${core_headers} LINKS ${core_libraries})
  tdock_precompile(tdock_core_cold_pch HEADERS ${core_headers} LINKS ${core_libraries} OPTIONS ${cold_options})
  if(TDOCK_TESTS)
    tdock_precompile(tdock_core_test_pch HEADERS ${core_headers} <gmock/gmock.h> <gtest/gtest.h>
                     LINKS ${core_libraries} GTest::gmock OPTIONS ${test_options})
  endif()
endif()
if(TDOCK_TORCH)
  tdock_precompile(tdock_torch_pch HEADERS <ATen/ATen.h> <nlohmann/json.hpp>
                   LINKS LibTorch::LibTorch nlohmann_json::nlohmann_json OPTIONS ${cold_options})
endif()

# tdock_compile_together(TARGET [TORCH] [TEST] [COLD] [PLAIN])
#
# TORCH: its sources include libtorch. TEST: it is part of the tests. COLD: as of tdock_module(). PLAIN: its flags allow
# no precompiled header of ours.
function(tdock_compile_together target)
  cmake_parse_arguments(arg "TORCH;TEST;COLD;PLAIN" "" "" ${ARGN})
  if(TDOCK_BATCH GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TDOCK_BATCH})
  endif()
  if(arg_TEST)
    target_compile_options(${target} PRIVATE ${test_options})
  elseif(arg_COLD)
    target_compile_options(${target} PRIVATE ${cold_options})
  endif()
  if(arg_PLAIN OR (NOT arg_TORCH AND NOT TDOCK_BATCH GREATER 1))
    return()
  elseif(arg_TORCH)
    if(arg_TEST OR arg_COLD OR NOT cold_options)  # flags differ otherwise
      target_precompile_headers(${target} REUSE_FROM tdock_torch_pch)
    endif()
  elseif(arg_TEST)
    target_precompile_headers(${target} REUSE_FROM tdock_core_test_pch)
  elseif(arg_COLD)
    target_precompile_headers(${target} REUSE_FROM tdock_core_cold_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM tdock_core_pch)
  endif()
endfunction()
