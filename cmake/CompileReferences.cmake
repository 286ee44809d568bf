# Sources that never change, compiled beside ours: what compiling ours costs is held against them (scripts/timings.py --gate).
# GoogleTest and its mocks, and nlohmann's JSON with all its functions.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/json_reference.cc CONTENT
     "#include <nlohmann/json.hpp>\ntemplate class nlohmann::basic_json<>;\ntemplate class nlohmann::basic_json<nlohmann::ordered_map>;\n")
set(googletest /usr/src/googletest)
if(NOT EXISTS ${googletest}/googletest/src/gtest-all.cc)  # where Debian has it
  return()
endif()
add_library(tdock_compile_references OBJECT EXCLUDE_FROM_ALL ${googletest}/googletest/src/gtest-all.cc
            ${googletest}/googlemock/src/gmock-all.cc ${CMAKE_BINARY_DIR}/json_reference.cc)
target_include_directories(tdock_compile_references PRIVATE ${googletest}/googletest ${googletest}/googlemock)
target_compile_options(tdock_compile_references PRIVATE -w)
target_link_libraries(tdock_compile_references PRIVATE nlohmann_json::nlohmann_json GTest::gmock)
