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

const absl::string_view tdock::@TDOCK_EMBED_SYMBOL@ = R"TDOCK_EMBED(@TDOCK_EMBED_TEXT@)TDOCK_EMBED";
]])
  set_source_files_properties(${generated} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE ${generated})
endfunction()
