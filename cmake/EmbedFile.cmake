# tdock_embed(TARGET FILE HEADER SYMBOL)
#
# Puts the text of FILE into TARGET as the constant tdock::SYMBOL (such as train::kPage), an absl::string_view that
# HEADER declares. An edited FILE is taken over by the next build.
function(tdock_embed target file header symbol)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} TDOCK_EMBED_TEXT)
  set(TDOCK_EMBED_HEADER ${header})
  set(TDOCK_EMBED_SYMBOL ${symbol})
  get_filename_component(name ${file} NAME)
  set(generated ${CMAKE_BINARY_DIR}/embedded/${name}.cc)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
#include "@TDOCK_EMBED_HEADER@"

// The standard asks compilers for no more than 65,536 bytes; GCC and Clang take more.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Woverlength-strings"
#endif
const absl::string_view tdock::@TDOCK_EMBED_SYMBOL@ = R"TDOCK_EMBED(@TDOCK_EMBED_TEXT@)TDOCK_EMBED";
]])
  set_source_files_properties(${generated} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE ${generated})
endfunction()

# tdock_embed_program(TARGET MAIN HEADER SYMBOL MODULE…)
#
# The same for a Python program of several files in python/transfer_dock, as one text: MAIN, and before it the modules
# that it imports, in an order in which they can be imported.
function(tdock_embed_program target main header symbol)
  set(folder ${PROJECT_SOURCE_DIR}/python/transfer_dock)
  file(READ ${folder}/_text_program.py program)
  foreach(module ${ARGN} ${main})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/${module}.py)
    file(READ ${folder}/${module}.py text)
    if(module STREQUAL main)
      string(APPEND program "run('${module}', r'''${text}''')\n")
    else()
      string(APPEND program "add('${module}', r'''${text}''')\n")
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/_text_program.py)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/embedded/${main}_program.py @ONLY CONTENT "@program@")
  tdock_embed(${target} ${CMAKE_BINARY_DIR}/embedded/${main}_program.py ${header} ${symbol})
endfunction()
