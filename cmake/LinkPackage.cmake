# cmake -D FROM=python/transfer_dock -D TO=folder -D EXECUTABLES=name,… -P LinkPackage.cmake
#
# Makes TO, which is in python/ of a build folder, a package: links to every file of FROM, and in bin/ to the executables of
# the build folder, which may be built later. What is there besides (the extension) stays.
file(GLOB_RECURSE old LIST_DIRECTORIES false ${TO}/*)
foreach(file ${old})
  if(IS_SYMLINK ${file} AND NOT EXISTS ${file})
    file(REMOVE ${file})
  endif()
endforeach()
file(GLOB_RECURSE sources RELATIVE ${FROM} ${FROM}/*.py ${FROM}/*.pyi ${FROM}/*.yaml ${FROM}/py.typed)
foreach(file ${sources})
  get_filename_component(folder ${TO}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${FROM}/${file} ${TO}/${file} SYMBOLIC)
endforeach()
file(MAKE_DIRECTORY ${TO}/bin)
get_filename_component(build ${TO}/../.. ABSOLUTE)
string(REPLACE "," ";" EXECUTABLES "${EXECUTABLES}")
foreach(executable ${EXECUTABLES})
  file(CREATE_LINK ${build}/${executable} ${TO}/bin/${executable} SYMBOLIC)
endforeach()
