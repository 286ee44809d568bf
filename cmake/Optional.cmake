# Parts of the build that need something which may not be installed.

option(TDOCK_COMPLETE "Refuse to configure without a part that needs something optional" OFF)

# tdock_optional(FOUND LOST REMEDY)
#
# Says that without FOUND, a variable, the build lacks LOST, and that REMEDY puts it right; an error in a complete build.
# What is found is looked for by each configuration anew, and never kept in the cache.
function(tdock_optional found lost remedy)
  if(${found})
    return()
  endif()
  set(mode STATUS)
  if(TDOCK_COMPLETE)
    set(mode FATAL_ERROR)
  endif()
  message(${mode} "This build has no ${lost}: ${remedy}")
endfunction()
