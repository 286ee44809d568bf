# Flags that every target of this project shares.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# -fPIC by hand: CMake would give executables -fPIE, and a precompiled header serves one of the two only.
add_compile_options(-fPIC)
# For all, because the packages of some libraries ask for it, and a precompiled header serves those with it or without.
add_compile_options(-pthread)
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # These five report correct code of the standard library at -O2 in g++ 12.
  add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety -Werror=thread-safety)
endif()

if(TDOCK_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(TDOCK_CHECK_LOCKS)
endif()
if(TDOCK_SANITIZE)
  add_compile_options(-fsanitize=${TDOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TDOCK_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND TDOCK_SANITIZE MATCHES "address")
    # Libraries hide the types of their objects, which only g++'s check of them knows; and what g++ defines by itself.
    add_compile_options(-fno-sanitize=vptr -D__SANITIZE_ADDRESS__)
  endif()
endif()

find_program(ccache ccache NO_CACHE)
if(ccache AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache asks for with precompiled headers. Two checkouts share results by the base directory,
  # and by not counting the folder that debug information names.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${ccache})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

find_program(mold mold NO_CACHE)
if(mold)
  # Each segment begins on a page of its own: where thread-local variables end a few bytes before the end of a page, mold
  # 1.10 otherwise has the loader protect a page that is not mapped, and the program does not start.
  add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
endif()
