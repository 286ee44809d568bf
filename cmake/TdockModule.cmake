# tdock_targets(VARIABLE module…)
#
# The targets of modules: tdock_dock_table is that of dock/table.
function(tdock_targets variable)
  list(TRANSFORM ARGN REPLACE "/" "_")
  list(TRANSFORM ARGN PREPEND tdock_)
  set(${variable} ${ARGN} PARENT_SCOPE)
endfunction()

# tdock_module(NAME [TORCH] [COLD] [NO_TSAN] [HOT_TESTS] [USES module…] [LINKS target…] [PRIVATE_LINKS target…]
#              [TEST_USES module…] [ALONE source…] [LONG_TESTS filter])
#
# Declares the module src/NAME, such as dock/table: a static library of its *.cc, tdock_dock_table, and one test
# executable of its *_test.cc, dock_table_test. With TDOCK_FUZZ, also one fuzzer of each *_fuzz.cc, all of them built by
# the target `fuzzers`.
# COLD says that no loop of it is hot, so that it is compiled with -O1, which takes a quarter less time than -O2.
# USES lists the modules whose headers it may include; the right is transitive. TORCH lets it include libtorch.
# TEST_USES lists the suites (tdock_test_suites) that its test executable has.
# ALONE lists sources whose headers go with no others: they are compiled one by one, without a precompiled header.
# NO_TSAN leaves its tests out of builds with ThreadSanitizer: it has no threads.
# HOT_TESTS says that its tests compute much, so that they are optimised even where sanitizers slow the compiler down.
# LONG_TESTS is a GoogleTest filter of tests that take minutes on two cores, and get both.
# tests/layering_test.py reads these declarations and fails on an include that they do not allow.
function(tdock_module name)
  cmake_parse_arguments(arg "TORCH;COLD;NO_TSAN;HOT_TESTS" "LONG_TESTS" "USES;LINKS;PRIVATE_LINKS;TEST_USES;ALONE" ${ARGN})
  if(arg_TORCH AND NOT TDOCK_TORCH)
    return()
  endif()
  set(dir ${PROJECT_SOURCE_DIR}/src/${name})
  string(REPLACE "/" "_" id ${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cc)
  file(GLOB fuzzers CONFIGURE_DEPENDS ${dir}/*_fuzz.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|main)\\.cc$")
  foreach(source ${arg_ALONE})
    set_source_files_properties(${dir}/${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  endforeach()

  set(target tdock_${id})
  tdock_targets(used ${arg_USES})
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(${target} ${scope} ${used} ${arg_LINKS})
  if(sources AND arg_PRIVATE_LINKS)
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE_LINKS})
  endif()
  set(kind "")
  set(heat "")
  if(arg_COLD)
    set(heat COLD)
  endif()
  if(arg_TORCH)
    set(kind TORCH)
    target_link_libraries(${target} ${scope} LibTorch::LibTorch)
  endif()
  if(sources)
    tdock_compile_together(${target} ${kind} ${heat})
  endif()

  if(TDOCK_TESTS AND tests AND NOT (arg_NO_TSAN AND TDOCK_SANITIZE MATCHES "thread"))
    add_executable(${id}_test ${tests})
    tdock_targets(suites ${arg_TEST_USES})
    target_link_libraries(${id}_test PRIVATE ${target} ${suites} GTest::gmock GTest::gtest_main)
    if(arg_HOT_TESTS AND TDOCK_SANITIZE)
      tdock_compile_together(${id}_test ${kind} COLD)
    else()
      tdock_compile_together(${id}_test ${kind} TEST)
    endif()
    # The value of a parameter may be an address, which no two builds have in common: its number names the test.
    set(discovery WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES)
    if(arg_LONG_TESTS)
      gtest_discover_tests(${id}_test ${discovery} TEST_FILTER ${arg_LONG_TESTS} TEST_LIST ${id}_long_tests
                           PROPERTIES LABELS unit PROCESSORS 2)
      set(short_tests TEST_FILTER -${arg_LONG_TESTS})
    endif()
    gtest_discover_tests(${id}_test ${discovery} ${short_tests} PROPERTIES LABELS unit)
  endif()
  if(TDOCK_FUZZ)
    foreach(source ${fuzzers})
      cmake_path(GET source STEM fuzzer)
      add_executable(${fuzzer} EXCLUDE_FROM_ALL ${source})
      target_link_libraries(${fuzzer} PRIVATE ${target} GTest::gtest)
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${fuzzer})
    endforeach()
  endif()
endfunction()

# tdock_test_suites(NAME [TORCH] USES module…)
#
# The suites of src/NAME/*.cc, which the tests of several modules run, and helpers of theirs; compiled once.
function(tdock_test_suites name)
  cmake_parse_arguments(arg "TORCH" "" "USES" ${ARGN})
  if(NOT TDOCK_TESTS OR (arg_TORCH AND NOT TDOCK_TORCH))
    return()
  endif()
  file(GLOB suites CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  tdock_targets(target ${name})
  tdock_targets(used ${arg_USES})
  add_library(${target} OBJECT ${suites})
  target_link_libraries(${target} PUBLIC ${used} GTest::gmock)
  set(kind "")
  if(arg_TORCH)
    set(kind TORCH)
  endif()
  tdock_compile_together(${target} ${kind} TEST)
endfunction()

# tdock_plugin(NAME [TORCH] USES module… LINKS target…)
#
# Declares the module src/NAME as a shared object in the build folder, such as libtdock_data_parquet.so, where the targets
# of LINKS exist.
# Programs load it; none is linked with it.
function(tdock_plugin name)
  cmake_parse_arguments(arg "TORCH" "" "USES;LINKS" ${ARGN})
  if(arg_TORCH AND NOT TDOCK_TORCH)
    return()
  endif()
  foreach(target ${arg_LINKS})
    if(NOT TARGET ${target})
      return()
    endif()
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  tdock_targets(target ${name})
  tdock_targets(used ${arg_USES})
  add_library(${target} MODULE ${sources})
  target_link_libraries(${target} PRIVATE ${used} ${arg_LINKS})
  set(kind "")
  if(arg_TORCH)
    set(kind TORCH)
  endif()
  tdock_compile_together(${target} ${kind})
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()
